"""Errors with stable codes.

An error says what went wrong, where (`field`), and what to do (`fix`). It is mapped to an outer form in three
places only: activities (Temporal `ApplicationError`), the API (`application/problem+json`) and the CLI (exit code).
Nobody matches on the text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class ErrorKind(StrEnum):
    """How an outer surface must treat an error; one HTTP status and one exit code belong to each kind."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    NEEDS_PERSON = "needs_person"
    UNAVAILABLE = "unavailable"
    STORAGE = "storage"
    FAILED = "failed"


class MilepostError(Exception):
    """Base of every expected failure.

    Attributes:
        code: stable identifier, part of the public contract.
        kind: the class of treatment, see `ErrorKind`.
        retryable: whether the same call may succeed later without any change.
        other_route_may_help: whether a call that failed so may succeed with another provider or model.
    """

    code: ClassVar[str] = "internal"
    kind: ClassVar[ErrorKind] = ErrorKind.FAILED
    retryable: ClassVar[bool] = False
    other_route_may_help: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.fix = fix

    def __str__(self) -> str:
        if not self.fix:
            return self.message
        # A message may end with what somebody else said, which need not be a sentence.
        stop = "" if self.message.endswith((".", "!", "?", "…")) else "."
        return f"{self.message}{stop} {self.fix}"


# --- input ------------------------------------------------------------------------------------------------------


class InvalidInput(MilepostError):
    """A value cannot be accepted as given."""

    code = "invalid_input"
    kind = ErrorKind.INVALID


class ConfigInvalid(MilepostError):
    """The configuration file or the environment cannot be used."""

    code = "config_invalid"
    kind = ErrorKind.INVALID


class PayloadTooLarge(MilepostError):
    """A value is over a stated limit; the message names owner (tool), field, size and limit in bytes."""

    code = "payload_too_large"
    kind = ErrorKind.TOO_LARGE

    @classmethod
    def of(cls, owner: str, field: str, size: int, limit: int) -> PayloadTooLarge:
        return cls(
            f"{owner}: '{field}' has {size} bytes; at most {limit} bytes are accepted.",
            field=field,
            fix="Send less, or put the data in a file of the workspace and refer to it.",
        )


# --- lookups and conflicts --------------------------------------------------------------------------------------


class SessionNotFound(MilepostError):
    code = "session_not_found"
    kind = ErrorKind.NOT_FOUND


class TurnNotFound(MilepostError):
    code = "turn_not_found"
    kind = ErrorKind.NOT_FOUND


class EffectNotFound(MilepostError):
    code = "effect_not_found"
    kind = ErrorKind.NOT_FOUND


class TextNotFound(MilepostError):
    """Streamed text that is not there: not said yet, or of a superseded attempt whose turn has ended."""

    code = "text_not_found"
    kind = ErrorKind.NOT_FOUND


class EffectNotUncertain(MilepostError):
    """Only an effect whose outcome is unknown can be reconciled, and only once."""

    code = "effect_not_uncertain"
    kind = ErrorKind.CONFLICT


class ApprovalNotFound(MilepostError):
    code = "approval_not_found"
    kind = ErrorKind.NOT_FOUND


class ApprovalSettled(MilepostError):
    """The approval has its one answer already."""

    code = "approval_resolved"
    kind = ErrorKind.CONFLICT


class ApprovalExpired(MilepostError):
    """The answer came after the approval's time was over."""

    code = "approval_expired"
    kind = ErrorKind.CONFLICT


class ConsolidationNotFound(MilepostError):
    code = "consolidation_not_found"
    kind = ErrorKind.NOT_FOUND


class ConsolidationSettled(MilepostError):
    """The consolidation is in a state that does not allow it: reviewed already, or nothing of it is in a block."""

    code = "consolidation_settled"
    kind = ErrorKind.CONFLICT


class AgentIsStopped(MilepostError):
    """A person has stopped the agent; it works no more until it is started again."""

    code = "agent_stopped"
    kind = ErrorKind.CONFLICT


class PolicyRuleNotFound(MilepostError):
    code = "policy_rule_not_found"
    kind = ErrorKind.NOT_FOUND


class BlobNotFound(MilepostError):
    """A blob the ledger refers to is not in the store (lost or damaged)."""

    code = "blob_not_found"
    kind = ErrorKind.STORAGE


class AttachmentNotFound(MilepostError):
    code = "attachment_not_found"
    kind = ErrorKind.NOT_FOUND


class AgentUnknown(MilepostError):
    code = "agent_unknown"
    kind = ErrorKind.NOT_FOUND


class AgentExists(MilepostError):
    code = "agent_exists"
    kind = ErrorKind.CONFLICT


class ConfigReadOnly(MilepostError):
    """The configuration cannot be edited from here: there is no file, or it cannot be written."""

    code = "config_read_only"
    kind = ErrorKind.CONFLICT


class ProviderUnknown(MilepostError):
    code = "provider_unknown"
    other_route_may_help = True
    kind = ErrorKind.NOT_FOUND


class SessionClosed(MilepostError):
    code = "session_closed"
    kind = ErrorKind.CONFLICT


class TurnRunning(MilepostError):
    """Another turn of the Session is running; `turn_id` names it."""

    code = "turn_running"
    kind = ErrorKind.CONFLICT

    def __init__(self, message: str, *, turn_id: str, field: str | None = None, fix: str | None = None) -> None:
        super().__init__(message, field=field, fix=fix)
        self.turn_id = turn_id


class TurnNotRunning(MilepostError):
    """The turn has a terminal state already; nothing was changed."""

    code = "turn_not_running"
    kind = ErrorKind.CONFLICT


class TurnSuperseded(MilepostError):
    """A rewind took the turn out of the conversation; it cannot be the point of another one."""

    code = "turn_superseded"
    kind = ErrorKind.CONFLICT


class IdempotencyMismatch(MilepostError):
    """The same idempotency key (or turn id) came with other content."""

    code = "idempotency_mismatch"
    kind = ErrorKind.CONFLICT


class TurnClaimed(MilepostError):
    """Another workflow run owns the turn, or the turn has ended; this run must do nothing."""

    code = "turn_claimed"
    kind = ErrorKind.CONFLICT


class Fenced(MilepostError):
    """A later attempt owns the effect; what this attempt writes is refused."""

    code = "fenced"
    kind = ErrorKind.CONFLICT


class IllegalTransition(MilepostError):
    """A state change that the transition table does not allow."""

    code = "illegal_transition"
    kind = ErrorKind.CONFLICT


# --- storage ----------------------------------------------------------------------------------------------------


class StorageUnavailable(MilepostError):
    """The database does not answer, or the data root cannot be written; nothing was changed."""

    code = "storage_unavailable"
    kind = ErrorKind.STORAGE
    retryable = True


class CommitUnknown(StorageUnavailable):
    """The connection was lost while committing: the change may or may not have been made."""

    code = "commit_unknown"


class CheckpointUnusable(MilepostError):
    """A checkpoint is damaged, foreign, of another release or over a bound; the ledger serves instead."""

    code = "checkpoint_unusable"
    kind = ErrorKind.STORAGE


class LegacyUnusable(MilepostError):
    """Files of before 1.0 are not what they must be (docs/legacy.md), or there are none."""

    code = "legacy_unusable"
    kind = ErrorKind.INVALID


class SchemaTooNew(MilepostError):
    code = "schema_too_new"
    kind = ErrorKind.STORAGE


class SchemaOutdated(MilepostError):
    code = "schema_outdated"
    kind = ErrorKind.STORAGE


class InstanceLocked(MilepostError):
    """Another Milepost process owns this data root."""

    code = "instance_locked"
    kind = ErrorKind.UNAVAILABLE


class InstanceNotRunning(MilepostError):
    """The command needs an instance that serves the data root."""

    code = "instance_not_running"
    kind = ErrorKind.UNAVAILABLE


class BackupUnusable(MilepostError):
    """The file is no whole backup, or a part of it is not what its digest says."""

    code = "backup_unusable"
    kind = ErrorKind.INVALID


class BackupTooNew(MilepostError):
    """A later release made the backup."""

    code = "backup_too_new"
    kind = ErrorKind.CONFLICT


class TargetNotEmpty(MilepostError):
    """What a backup would be restored into, or written to, is there already; nothing was changed."""

    code = "target_not_empty"
    kind = ErrorKind.CONFLICT


class LedgerCorrupt(MilepostError):
    """A stream's hash chain or sequence does not hold."""

    code = "ledger_corrupt"
    kind = ErrorKind.STORAGE


class UnknownEvent(MilepostError):
    """An event type or version that this release does not know."""

    code = "unknown_event"
    kind = ErrorKind.STORAGE


# --- peers ------------------------------------------------------------------------------------------------------


class TemporalUnavailable(MilepostError):
    code = "temporal_unavailable"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class SecretMissing(MilepostError):
    """A secret reference (`env:`, `file:`) does not resolve; the message names the reference, never the value."""

    code = "secret_missing"
    other_route_may_help = True
    kind = ErrorKind.INVALID


class ModelError(MilepostError):
    """Base of what a provider call may end with. `retry_after` is seconds, where the provider said so.

    `may_have_cost` tells that tokens may have been spent although nobody reported them.
    """

    code = "model_failed"
    kind = ErrorKind.FAILED
    other_route_may_help = True
    may_have_cost: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        fix: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, field=field, fix=fix)
        self.retry_after = retry_after
        self.status = status


class ModelUnavailable(ModelError):
    """The provider could not be reached or answered with a passing fault (5xx, connection lost, loading)."""

    code = "model_unavailable"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class ModelRateLimited(ModelError):
    code = "model_rate_limited"
    may_have_cost = False
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class ModelTimedOut(ModelError):
    code = "model_timed_out"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class ModelIncomplete(ModelError):
    """The stream ended without a terminal marker; what came is not a complete answer."""

    code = "model_incomplete"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class ModelUnauthorized(ModelError):
    """The key is missing, wrong or not allowed to use the model."""

    code = "model_unauthorized"
    may_have_cost = False
    kind = ErrorKind.INVALID


class ModelRequestRejected(ModelError):
    """The provider refuses this request as it is; sending it again cannot help."""

    code = "model_request_rejected"
    may_have_cost = False


class ModelContextTooLong(ModelRequestRejected):
    """The provider refuses the request as longer than its model takes; a shorter one may be taken."""

    code = "model_context_too_long"


class ModelAnswerTooLarge(ModelError):
    """The answer went over a bound (bytes or events); the message names it. The connection was closed."""

    code = "model_answer_too_large"
    other_route_may_help = False
    kind = ErrorKind.TOO_LARGE


class ModelAnswerMalformed(ModelError):
    """The answer has parts of a type the protocol does not have, and no reading of them is sensible."""

    code = "model_answer_malformed"


class ModelFault(ModelError):
    """The call failed in a way nobody foresaw: a fault of Milepost or of a library it stands on."""

    code = "model_fault"
    retryable = True


class BudgetExceeded(MilepostError):
    """A call that a budget does not allow; the message has the numbers."""

    code = "budget_exceeded"
    kind = ErrorKind.FORBIDDEN


class BudgetTimeUp(ModelError):
    """A model call that was ended since the time of its budget was up."""

    code = "budget_time_up"
    other_route_may_help = False


class ContextTooLarge(MilepostError):
    """A request that cannot fit the model's context window; nothing was sent."""

    code = "context_too_large"
    kind = ErrorKind.TOO_LARGE
    other_route_may_help = True


class ScriptExhausted(ModelError):
    """The scripted provider was called more often than its script has responses."""

    code = "script_exhausted"
    other_route_may_help = False
    may_have_cost = False


class TooManyReaders(MilepostError):
    """As many live readers as the process accepts follow already."""

    code = "too_many_readers"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class AddressUnavailable(MilepostError):
    """The API cannot listen where it was told to (port in use, address not of this host, no permission)."""

    code = "address_unavailable"
    kind = ErrorKind.UNAVAILABLE


class CassetteMiss(ModelError):
    """No recorded exchange answers this request; the message names the first difference to the nearest one."""

    code = "cassette_miss"
    other_route_may_help = False
    may_have_cost = False


class NamespaceNotFound(MilepostError):
    """Long-term memory has no such namespace."""

    code = "namespace_not_found"
    kind = ErrorKind.NOT_FOUND


class VersionConflict(MilepostError):
    """A record is not of the version that the write was based on."""

    code = "version_conflict"
    kind = ErrorKind.CONFLICT


class RecordUnreadable(MilepostError):
    """A stored record is damaged, or of a format of a later release; the message names it."""

    code = "record_unreadable"
    kind = ErrorKind.STORAGE


class VectorCorrupt(MilepostError):
    """A stored vector is not what was written; the message names the record. Searches by words still work."""

    code = "vector_corrupt"
    kind = ErrorKind.STORAGE


class MemoryStoreUnavailable(MilepostError):
    """A store of long-term memory is not configured here, or its package cannot be loaded."""

    code = "memory_store_unavailable"
    kind = ErrorKind.UNAVAILABLE


class EmbedderUnknown(MilepostError):
    """No embedder has this name; the fix names those that there are."""

    code = "embedder_unknown"
    kind = ErrorKind.INVALID


class EmbeddingFailed(MilepostError):
    """An embedder made no vectors: not installed, not reachable, too slow, or its answer cannot be used."""

    code = "embedding_failed"
    kind = ErrorKind.UNAVAILABLE
    retryable = True


class SandboxUnavailable(MilepostError):
    """No sandbox can be had (no Podman, no image, service down); the fix says what to install or start."""

    code = "sandbox_unavailable"
    kind = ErrorKind.UNAVAILABLE


class SandboxMissing(MilepostError):
    """The sandbox that an environment was prepared in does not exist any more, and no other one takes its place."""

    code = "sandbox_missing"
    kind = ErrorKind.UNAVAILABLE


class SandboxLost(MilepostError):
    """The container that held a dispatched operation is gone; whether the operation was applied is unknown."""

    code = "sandbox_lost"
    kind = ErrorKind.UNAVAILABLE


class NotARepository(MilepostError):
    """The Workspace is no Git repository."""

    code = "not_a_repository"
    kind = ErrorKind.CONFLICT


class GitRefused(MilepostError):
    """Git did not do what was asked; the text is its own."""

    code = "git_refused"
    kind = ErrorKind.CONFLICT


class HunkChanged(MilepostError):
    """A chosen hunk is not there any more; nothing was done."""

    code = "hunk_changed"
    kind = ErrorKind.CONFLICT


class ProcessNotFound(MilepostError):
    """The sandbox knows no terminal or background process of this id."""

    code = "process_not_found"
    kind = ErrorKind.NOT_FOUND


class ProcessLimit(MilepostError):
    """As many processes run in the sandbox as may."""

    code = "process_limit"
    kind = ErrorKind.CONFLICT


class ProcessBusy(MilepostError):
    """A terminal does not read what was typed; nothing of this was taken."""

    code = "process_busy"
    kind = ErrorKind.CONFLICT
    retryable = True


class SandboxUnsupported(MilepostError):
    """The back end of sandboxes cannot do what was asked; nothing was done, and nothing else was done in its place."""

    code = "sandbox_unsupported"
    kind = ErrorKind.INVALID


class EnvironmentNotReady(MilepostError):
    """What needs the Session's sandbox is refused until its environment is Ready; the text names state and way."""

    code = "environment_not_ready"
    kind = ErrorKind.NEEDS_PERSON


class EnvironmentNotFound(MilepostError):
    code = "environment_not_found"
    kind = ErrorKind.NOT_FOUND


class EnvironmentConflict(MilepostError):
    """The environment's state does not allow what was asked; nothing was changed."""

    code = "environment_conflict"
    kind = ErrorKind.CONFLICT


class ImageNotAllowed(MilepostError):
    """An image outside the curated set, which only `sandbox.allow_untrusted_images` admits."""

    code = "image_not_allowed"
    kind = ErrorKind.INVALID


class SetupFailed(MilepostError):
    """The approved setup command ended badly, or nobody knows how it ended."""

    code = "setup_failed"


class SnapshotFailed(MilepostError):
    """The state of a Workspace could not be taken, read or restored."""

    code = "snapshot_failed"
    kind = ErrorKind.UNAVAILABLE


class SnapshotNotFound(MilepostError):
    """The state is not kept on this host."""

    code = "snapshot_not_found"
    kind = ErrorKind.NOT_FOUND


class WorkspaceChanged(MilepostError):
    """Files are not as the last snapshot has them; nothing was overwritten."""

    code = "workspace_changed"
    kind = ErrorKind.CONFLICT


class WorkspaceBusy(MilepostError):
    """Another turn or operation works on the Workspace's files; the message names it."""

    code = "workspace_busy"
    kind = ErrorKind.CONFLICT


class ToolRejected(MilepostError):
    """A tool call that cannot be run as asked; the text goes back to the model as the tool's error result."""

    code = "tool_rejected"
    kind = ErrorKind.INVALID


class ArgumentsUnparsable(ToolRejected):
    """Arguments of a tool call that are no JSON."""


class ToolUnavailable(MilepostError):
    """A tool of the user's own that the configuration names cannot be had (its package is missing or faulty)."""

    code = "tool_unavailable"
    kind = ErrorKind.INVALID


class ToolFailed(MilepostError):
    """A tool of the user's own ended with an error; the text goes back to the model.

    `retryable_now` tells that nothing was done, or that the peer asks to come again.
    """

    code = "tool_failed"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        fix: str | None = None,
        retryable_now: bool = False,
        detail: dict[str, int | str] | None = None,
    ) -> None:
        super().__init__(message, field=field, fix=fix)
        self.retryable_now = retryable_now
        self.detail = detail or {}


class HookUnavailable(MilepostError):
    """A hook that must not be passed over cannot be had (its package is missing or faulty)."""

    code = "hook_unavailable"
    kind = ErrorKind.INVALID


class HookFailed(MilepostError):
    """A hook gave no answer that can be used. `retryable_now` tells that it may be asked again at once."""

    code = "hook_failed"

    def __init__(self, message: str, *, retryable_now: bool = False) -> None:
        super().__init__(message)
        self.retryable_now = retryable_now


class OutcomeUnknown(MilepostError):
    """A call was handed over and nobody can say whether it took effect. `in_time`: its time was not over yet."""

    code = "outcome_unknown"

    def __init__(self, message: str, *, in_time: bool = False) -> None:
        super().__init__(message)
        self.in_time = in_time


# --- memory -----------------------------------------------------------------------------------------------------


class MemoryUnavailable(MilepostError):
    """The memory store does not answer, or refuses what it is asked."""

    code = "memory_unavailable"
    kind = ErrorKind.STORAGE
    retryable = True


class MemoryDamaged(MilepostError):
    """What the memory store holds cannot be read."""

    code = "memory_damaged"
    kind = ErrorKind.STORAGE


class MemoryOff(MilepostError):
    """The agent has no memory by its configuration."""

    code = "memory_off"
    kind = ErrorKind.CONFLICT


class BlockNotFound(MilepostError):
    """The agent has no such core block, or the block no such version."""

    code = "block_not_found"
    kind = ErrorKind.NOT_FOUND


class BlockConflict(MilepostError):
    """Somebody else wrote the block meanwhile."""

    code = "block_conflict"
    kind = ErrorKind.CONFLICT
    retryable = True


class BlockTooLong(MilepostError):
    """The text is over the block's limit; the message names it."""

    code = "block_too_long"
    kind = ErrorKind.TOO_LARGE


class RecordNotFound(MilepostError):
    """There is no record of this id in the owner's memory, or it was forgotten."""

    code = "record_not_found"
    kind = ErrorKind.NOT_FOUND


class EmbeddingMismatch(MilepostError):
    """The stored vectors are another embedder's; the fix is the command that makes them anew."""

    code = "embedding_mismatch"
    kind = ErrorKind.CONFLICT
