-- layout.lua -- the byte order of one side (keys or values) of one KV head inside a page.
--
--     | codes | scales | zeros, of affine levels | extra, what rows have beside their codes | pad |
--
-- to a multiple of 16 bytes, so that what comes after begins at one.
--
-- Codes: cells of 16 tokens x 16 channels, [tile of tokens][group of channels], 32 * bits bytes
-- each.  One direction of a cell runs along the 16 lanes of a vector, the other along its words:
--
--               lanes      words
--     keys      tokens     channels     a vector of scores grows by one channel at a time
--     values    channels   tokens       a vector of the output grows by one token at a time
--
-- The bits of a code are split into planes of 16, 8, 4, 2 and 1, low bits first.  A plane of width
-- w <= 8 is words of 32 bits a lane, so that one load of 64 bytes holds all 16 lanes.  Codes of
-- even words are in the low half of a word, codes of odd ones in the high half, so that a shift and
-- a mask leave pairs of 16-bit numbers for an integer dot product, and a shift and a mask of the
-- whole leave one number for arithmetic in floats:
--
--     code i of a lane: half i mod 2, and with k = i div 2, each = 16 / w:
--                       word k div each, bit w (k mod each) of the half
--
-- A plane of width 1 would fill half of each half: lanes l and l + 8 share word l, lane l + 8 at
-- bit k + 8.  Numbers of 16 bits are [i][lane], u16 each.
--
-- Metadata: one array along the direction that groups do not run along.  Groups along words:
-- [words / group_size][lanes], a vector of lanes at once.  Groups along lanes:
-- [lanes / group_size][words].  In tokens and channels that is [group of channels][token] for
-- per_token and [group of tokens][channel] for per_channel, on both sides.
--
-- Extra, of slots: [token][slot], 3 bytes each: the value as u16, its channel.  Of a sketch:
-- [token], the norm as f16, then signs, low bits first.  Where channels are kept apart: [unit of
-- tokens], their channels, a byte each, then [token]: both norms, the signs, those of the channels
-- apart.  Of norms: [token], a byte each.  Of promoted channels: [unit of tokens], their channels,
-- a byte each, then their planes of 2 bits.
--
-- Where channels are in sets (gen/parts/outliers.lua), the side is one such run after the other.

local layout = {}

layout.cell = 16                       -- tokens and channels of a cell, on every instruction set

-- Returns the planes of a code of `bits` bits: width, low (its lowest bit), at (bytes in a cell).
function layout.planes(bits)
    local planes, low = {}, 0
    for _, width in ipairs { 8, 4, 2, 1 } do
        if bits - low >= width then
            planes[#planes + 1] = { width = width, low = low, at = 32 * low }
            low = low + width
        end
    end
    return planes
end

-- Returns how many rows share what a part of stage extra stores (nil: none), and its bytes.
function layout.extra(part, number, head_dim, group_size)
    if not part or part.splits then return 1, 0 end
    if part.row_bytes then return 1, part.row_bytes end
    if part.promotes then return group_size, number * (1 + (group_size + 3) // 4) end
    if not part.signs then return 1, 3 * number end
    local apart = part.apart or { channels = 0, rows = 1 }
    local sketches = part.apart and number + 1 or number
    local row_bytes = head_dim // 8 * sketches + (part.apart and 4 or 2)
    return apart.rows, apart.channels + apart.rows * row_bytes
end

-- Returns the bytes of one side: cell_bytes, scales_at, zeros_at, slots_at, page_bytes;
-- num_groups; and extra_rows, extra_bytes.  meta: bytes of a scale and a zero, extra, its number.
function layout.side(bits, head_dim, page_size, group_size, meta)
    local code_bytes = page_size * head_dim * bits // 8
    local groups = group_size > 0 and page_size * head_dim // group_size or 0
    local zeros_at = code_bytes + groups * meta.scale_bytes
    local slots_at = zeros_at + groups * meta.zero_bytes
    local rows, bytes = layout.extra(meta.extra, meta.extra_number, head_dim, group_size)
    return {
        cell_bytes = 32 * bits,
        num_groups = groups,
        scales_at  = code_bytes,
        zeros_at   = zeros_at,
        slots_at   = slots_at,
        extra_rows = rows,
        extra_bytes = bytes,
        page_bytes = (slots_at + page_size // rows * bytes + 15) // 16 * 16,
    }
end

return layout
