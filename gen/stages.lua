-- stages.lua -- the stages that a codec is composed of, in write order.
--
-- A codec names one word for each stage.  A word is a part: a file in gen/parts/ that says which
-- stage it serves; "none" is the word of a stage that may be left out, and the words of `axis` are
-- structure rather than parts.  A word that takes a number ends in it: hadamard32.

return {
    { name = "place",     default = "post_rope", text = "which row is stored" },
    { name = "shift",     default = "none", text = "a calibrated vector that is subtracted" },
    { name = "transform", default = "none", text = "change of basis" },
    { name = "choose",    default = "none", text = "which of several transforms a unit takes" },
    { name = "score",     default = "none", text = "what an error costs, for the choice" },
    { name = "axis",      default = "per_token", text = "who shares a scale",
      words = { "per_token", "per_channel" } },
    { name = "fit",       default = "none", text = "how scale and offset are found" },
    { name = "levels",    default = "affine", text = "what a code means" },
    { name = "round",     default = "nearest", text = "how a value becomes a code" },
    { name = "extra",     default = "none", text = "what is stored beside the codes" },
    { name = "meta",      default = "none", text = "how scale and offset are stored" },
}
