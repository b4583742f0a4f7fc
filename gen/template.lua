-- template.lua -- render a template.
--
-- A template is C with two additions:
--
--     //% stmt     a whole line of Lua: for, if, else, end, local
--     $(expr)      the value of a Lua expression; a multi-line value keeps the line's indent
--
-- A line `#include "name"` becomes the value of include(name).  Line n of a template is line n of
-- the Lua chunk, and #line marks keep that true in the output, so that errors of Lua and of the C
-- compiler both name the template's own lines.  A name that the environment lacks is an error.

local template = {}

-- Returns the Lua of line n; literal text is passed as a quoted string.
local function translate(text, n)
    local statement = text:match("^%s*//%%(.*)$")
    if statement then return statement end
    local file = text:match('^#include "([^"]+)"')
    if file then return ("emit(%d, '', include(%q))"):format(n, file) end
    local args, from = {}, 1
    for first, expr, after in text:gmatch("()%$(%b())()") do
        args[#args + 1] = ("%q"):format(text:sub(from, first - 1))
        args[#args + 1] = expr
        from = after
    end
    args[#args + 1] = ("%q"):format(text:sub(from))
    return ("emit(%d, %s)"):format(n, table.concat(args, ", "))
end

-- Integers and strings have one spelling; floats, tables and booleans do not, or hide a mistake.
local function spell(value)
    local kind = math.type(value) or type(value)
    if kind == "integer" or kind == "string" then return tostring(value) end
    error(kind .. " in a template: spell it as text first", 3)
end

-- Returns x as a float literal; the bytes do not depend on the locale.
function template.f32(x)
    if x - x ~= 0 then error("f32: not finite", 2) end
    local digits = ("%.9g"):format(x):gsub("[^%de+-]", ".")
    return digits .. (digits:find("[.e]") and "f" or ".0f")
end

-- Returns the text of template `source`; `name` is the path that errors show.
function template.render(name, source, env)
    if source:sub(-1) ~= "\n" then error(name .. ": the last line has no newline") end
    local chunk = {}
    for text in source:gmatch("([^\n]*)\n") do chunk[#chunk + 1] = translate(text, #chunk + 1) end

    local out, next_line = {}, nil
    local scope = setmetatable({}, { __index = function(_, key)
        local value = env[key]
        if value == nil then error("unknown name '" .. key .. "'", 2) end
        return value
    end })
    function scope.emit(line, first, ...)
        if line ~= next_line then out[#out + 1] = ('#line %d "%s"\n'):format(line, name) end
        next_line = line + 1
        local indent = first:match("^%s*")
        out[#out + 1] = first
        for i = 1, select("#", ...) do
            local value, breaks = spell((select(i, ...))):gsub("\n", "\n" .. indent)
            out[#out + 1] = value
            if breaks > 0 then next_line = nil end
        end
        out[#out + 1] = "\n"
    end
    local run, message = load(table.concat(chunk, "\n"), "@" .. name, "t", scope)
    if not run then error(message, 0) end
    run()
    return table.concat(out)
end

return template
