"use strict";
(() => {
  const root = document.documentElement;
  const input = document.getElementById("find");
  const told = document.getElementById("told");
  const fold = document.getElementById("fold");
  const turns = [...document.querySelectorAll("main .turn")];
  const cards = () => [...document.querySelectorAll("main details")];
  root.classList.add("scripted");

  const marks = [];
  const shown = "highlights" in CSS && typeof Highlight === "function";
  const MOST_MARKS = 2000;

  const mark = (turn, word) => {
    const walker = document.createTreeWalker(turn, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && marks.length < MOST_MARKS; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (let at = text.indexOf(word); at >= 0 && marks.length < MOST_MARKS; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        marks.push(range);
        for (let card = node.parentElement.closest("details"); card; card = card.parentElement.closest("details")) {
          if (!card.open) { card.open = true; card.dataset.opened = "1"; }
        }
      }
    }
  };

  const find = () => {
    const word = input.value.trim().toLowerCase();
    marks.length = 0;
    for (const card of document.querySelectorAll("details[data-opened]")) {
      card.open = false;
      delete card.dataset.opened;
    }
    let hits = 0;
    for (const turn of turns) {
      const has = !word || turn.textContent.toLowerCase().includes(word);
      turn.hidden = !has;
      const link = document.querySelector(`nav a[href="#${turn.id}"]`);
      if (link) link.parentElement.hidden = !has;
      if (has && word) { hits += 1; mark(turn, word); }
    }
    for (const note of document.querySelectorAll(".between")) note.hidden = Boolean(word);
    told.textContent = word ? `${hits} of ${turns.length} turns` : "";
    if (shown) {
      if (word) CSS.highlights.set("found", new Highlight(...marks)); else CSS.highlights.delete("found");
    }
  };

  let waiting = 0;
  input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 120); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; find(); }
    if (event.key === "Enter" && marks.length) marks[0].startContainer.parentElement.scrollIntoView({ block: "center" });
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) { event.preventDefault(); input.focus(); }
  });
  fold.addEventListener("click", () => {
    const open = cards().some((card) => !card.open);
    for (const card of cards()) { card.open = open; delete card.dataset.opened; }
    fold.textContent = open ? "Collapse all" : "Expand all";
  });
  let before = [];
  window.addEventListener("beforeprint", () => { before = cards().filter((card) => !card.open); before.forEach((card) => { card.open = true; }); });
  window.addEventListener("afterprint", () => { before.forEach((card) => { card.open = false; }); });
})();
