-- plan.lua -- what a shape decides: refuse it, or choose the structure that serves it.

local refuse = require "refuse"

local plan = {}

local function check_shape(config)
    if config.num_heads < 1 or config.num_heads > 16 then
        refuse("num_heads = %d: must be 1 to 16", config.num_heads)
    end
    if config.page_size < 16 or config.page_size % 16 ~= 0 then
        refuse("page_size = %d: must be a multiple of 16", config.page_size)
    end
    if config.page_size > 65536 then
        refuse("page_size = %d: must be at most 65536", config.page_size)
    end
    if config.rows ~= "f16" and config.rows ~= "bf16" then
        refuse("rows = %s: must be f16 or bf16", config.rows)
    end
end

-- Splits num_heads into the fewest tiles of at most `most` heads, as even as they come.
local function split_heads(num_heads, most)
    local tiles, first = {}, 0
    local num_tiles = (num_heads + most - 1) // most
    for i = 1, num_tiles do
        local after = num_heads * i // num_tiles
        local heads = {}
        for head = first, after - 1 do heads[#heads + 1] = head end
        tiles[i] = heads
        first = after
    end
    return tiles
end

-- Returns head_tiles, lists of the heads that share one pass over a cell; and how many rows of a
-- window or a page are scored before their values are added.
function plan.attend(config, isa)
    check_shape(config)
    return {
        head_tiles  = split_heads(config.num_heads, isa.head_tile),
        window_rows = 64,              -- the rows are still in the first cache
        strip_rows  = config.page_size < 128 and config.page_size or 128,
    }
end

return plan
