-- refuse.lua -- say that a configuration cannot be served, and why.
--
-- A refusal is raised as a table that holds the message and a bug as a string, so that neither can
-- pass for the other.

return function(...) error({ string.format(...) }) end
