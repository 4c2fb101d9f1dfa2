"""One suite for all back ends of the sandbox port. `backends` says which there are and what each of them claims."""
