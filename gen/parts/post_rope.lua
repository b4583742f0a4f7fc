-- post_rope -- rows are stored as they are dotted with queries: keys after RoPE.

return { stage = "place", name = "post_rope", text = "keys after RoPE" }
