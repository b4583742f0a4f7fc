-- codebooks.lua -- what codes mean where levels are not equally spaced, and where they part.
--
-- A part of stage levels has one of three:
--     book   by bits: the levels of codes 0, 1, 2, ..., rising; or "normal", those below.  A value
--            in the middle of two gets the upper one
--     float  a small float of sign, `exponent` and `mantissa` bits: code m of the magnitudes is
--            m 2^(1 - bias - mantissa) at exponent 0, else with the leading 1 at 2^(e - bias);
--            `last` is the greatest that is written.  A value in the middle of two gets the even
--            one
--     points two channels have a level together, of those of gen/points.lua (gen/parts/plane.lua)
-- The level of a value is found by bounds, which are float32: as many as are not greater than it
-- are passed.  Of floats that is so of magnitudes, and the sign is a bit of the code.

local planes = require "points"

local codebooks = {}

-- Levels above 0 of least squared error for the normal distribution of variance 1, by bits.
local normal = {
    { 0.797884561 },
    { 0.452780035, 1.51041761 },
    { 0.245094179, 0.756005281, 1.34390928, 2.1519457 },
    { 0.12839503, 0.388048299, 0.656759119, 0.942340456,
      1.2562312, 1.61804639, 2.06901723, 2.73258957 },
    { 0.0658896598, 0.19805183, 0.331378306, 0.466699523,
      0.604933624, 0.747135704, 0.894565117, 1.04878332,
      1.21180438, 1.38634034, 1.57622808, 1.78723322,
      2.0287284, 2.3177394, 2.69111958, 3.26073249 },
    { 0.0334095064, 0.100278289, 0.167296903, 0.234566985,
      0.302192846, 0.370282645, 0.438949672, 0.508313781,
      0.578503031, 0.649655581, 0.721921941, 0.795467656,
      0.870476587, 0.947154945, 1.02573635, 1.10648824,
      1.18972014, 1.27579449, 1.36514102, 1.45827637,
      1.55583122, 1.6585889, 1.76754188, 1.88397724,
      2.00961104, 2.14681022, 2.29898121, 2.4713048,
      2.67227384, 2.91740679, 3.24043706, 3.74410127 },
}

-- The levels of a book of so many bits, rising.
local function levels_of(book, bits)
    if book ~= "normal" then return book[bits] end
    local levels, half = {}, normal[bits]
    for i, level in ipairs(half) do
        levels[#half + i], levels[#half + 1 - i] = level, -level
    end
    return levels
end

local function to_f32(x) return (string.unpack("<f", string.pack("<f", x))) end

-- The next greater float32 of x > 0.
local function above(x)
    local bits = string.unpack("<I4", string.pack("<f", x)) + 1
    return (string.unpack("<f", string.pack("<I4", bits)))
end

local function magnitude(float, code)
    local e, m = code >> float.mantissa, code & (1 << float.mantissa) - 1
    if e > 0 then m, e = m + (1 << float.mantissa), e - 1 end
    return m * 2.0 ^ (e + 1 - float.bias - float.mantissa)
end

local function of_float(float, bits)
    local half, values, bounds = 1 << bits - 1, {}, {}
    for code = 0, half - 1 do
        values[code + 1] = magnitude(float, code)
        values[half + code + 1] = -magnitude(float, code)
    end
    for code = 0, float.last - 1 do
        local middle = (magnitude(float, code) + magnitude(float, code + 1)) / 2
        bounds[code + 1] = code % 2 == 0 and above(middle) or middle
    end
    return { values = values, bounds = bounds, signed = true, top = magnitude(float, float.last) }
end

local function of_book(levels)
    local values, bounds = {}, {}
    for i, level in ipairs(levels) do
        values[i] = to_f32(level)
        if i > 1 then bounds[i - 1] = to_f32((values[i - 1] + values[i]) / 2) end
    end
    local first, last = -values[1], values[#values]
    return { values = values, bounds = bounds, signed = false,
             top = first > last and first or last }
end

-- Points of the plane: the first numbers of all, then the second ones; of a bound there is half the
-- square of each.
local function of_points(list)
    local values, halves, top = {}, {}, 0
    local num = #list // 2
    for i = 1, num do
        local x, y = to_f32(list[2 * i - 1]), to_f32(list[2 * i])
        values[i], values[num + i], halves[i] = x, y, to_f32((x * x + y * y) / 2)
        for _, one in ipairs { x, y, -x, -y } do top = one > top and one or top end
    end
    return { values = values, bounds = halves, signed = false, top = top, plane = true }
end

-- Whether a levels part has a book.
function codebooks.has(part) return part.book or part.float or part.points or false end

-- Returns the book of a levels part at a width: values by code, bounds, signed, top (its greatest
-- magnitude) and octave, 2^-e of the power of two that is not above top.  false: it has none.
function codebooks.derive(part, bits)
    if not codebooks.has(part) then return false end
    local book = part.float and of_float(part.float, bits)
        or part.points and of_points(planes[bits]) or of_book(levels_of(part.book, bits))
    book.float, book.bits, book.octave = part.float or false, bits, 1.0
    while book.octave * book.top >= 2 do book.octave = book.octave / 2 end
    return book
end

-- Returns the books of a levels part that has several widths at once, one after the other, from the
-- one level 0 of no bits on: values, those of n bits from 2^n - 1 on; bounds, from 2^n - 1 - n on;
-- and the greatest width.
function codebooks.widths(part)
    local all = { values = { 0.0 }, bounds = {}, most = #part.widths }
    for _, bits in ipairs(part.widths) do
        local book = codebooks.derive(part, bits)
        for _, value in ipairs(book.values) do all.values[#all.values + 1] = value end
        for _, bound in ipairs(book.bounds) do all.bounds[#all.bounds + 1] = bound end
    end
    return all
end

return codebooks
