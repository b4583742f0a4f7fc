-- generate.lua -- print the program of one configuration.
--
--     lua5.4 tools/generate.lua isa=avx512 head_dim=64 k.bits=2 v.bits=2 ...
--
-- A dotted name is a nested table; whole numbers are integers, everything else is text.  Runs in
-- any folder: the tree is found beside this file.  Status 1 for a refusal, 2 for anything else.

local root = (arg[0]:match("^(.*)/tools/[^/]*$") or ".") .. "/"
if not arg[0]:find("/") then root = "../" end
package.path = root .. "gen/?.lua"

local function text_of(path)
    local file = io.open(root .. path, "rb")
    if not file then return nil end
    local text = file:read("a")
    file:close()
    return text
end

-- Sets config.a.b for the name "a.b".
local function assign(config, name, value)
    local at = config
    for part in name:gmatch("([^.]+)%.") do
        if at[part] == nil then at[part] = {} end
        at = at[part]
        if type(at) ~= "table" then error(name .. ": a value and a table at once", 0) end
    end
    at[name:match("[^.]+$")] = math.tointeger(tonumber(value)) or value
end

local function read_config(words)
    local config = {}
    for _, word in ipairs(words) do
        local name, value = word:match("^([%a_][%w_.]*)=(.*)$")
        if not name then error(("'%s': expected name=value"):format(word), 0) end
        assign(config, name, value)
    end
    return config
end

-- What is raised as a table is a refusal, what is raised as text is a bug.
local function explain(err)
    if type(err) == "table" then
        io.stderr:write("generate.lua: refused: ", tostring(err[1]), "\n")
        os.exit(1)
    end
    io.stderr:write("generate.lua: ", tostring(err), "\n")
    os.exit(2)
end

local done, result = pcall(function()
    local config = read_config(arg)
    return (require "main")(config, text_of)
end)
if not done then explain(result) end
io.write(result)
