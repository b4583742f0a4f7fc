-- codebooks.lua -- what codes mean where levels are not equally spaced, and where they part.
--
-- A part of stage levels has one of two:
--     book   by bits: the levels of codes 0, 1, 2, ..., rising.  A value in the middle of two gets
--            the upper one
--     float  a small float of sign, `exponent` and `mantissa` bits: code m of the magnitudes is
--            m 2^(1 - bias - mantissa) at exponent 0, else with the leading 1 at 2^(e - bias);
--            `last` is the greatest that is written.  A value in the middle of two gets the even
--            one
-- The level of a value is found by bounds, which are float32: as many as are not greater than it
-- are passed.  Of floats that is so of magnitudes, and the sign is a bit of the code.

local codebooks = {}

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

-- Returns the book of a levels part at a width: values by code, bounds, signed, top (its greatest
-- magnitude) and octave, 2^-e of the power of two that is not above top.  false: it has none.
function codebooks.derive(part, bits)
    if not part.book and not part.float then return false end
    local book = part.float and of_float(part.float, bits) or of_book(part.book[bits])
    book.float, book.bits, book.octave = part.float or false, bits, 1.0
    while book.octave * book.top >= 2 do book.octave = book.octave / 2 end
    return book
end

return codebooks
