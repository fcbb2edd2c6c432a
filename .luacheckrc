-- For the composed scripts that `make lint` writes to build/lua, not for the raw files of lua/.
std = "lua51"
max_line_length = 120
read_globals = {
  "KEYS",
  "ARGV",
  "cjson",
  "cmsgpack",
  "struct",
  "bit",
  redis = {
    fields = {
      "call",
      "pcall",
      "error_reply",
      "status_reply",
      "log",
      "sha1hex",
      "setresp",
      "LOG_NOTICE",
      "LOG_WARNING",
      "REDIS_VERSION_NUM", -- since Redis 7.0
      "VALKEY_VERSION_NUM", -- on Valkey alone
    },
  },
}

-- A shared piece gives several functions, and no script uses all of them.
ignore = { "231/emit_all", "311/emit" } -- these are made only where events are kept
for line in io.popen("grep -h '^local function' lua/lib/*.lua"):lines() do
  ignore[#ignore + 1] = "211/" .. line:match("^local function ([%w_]+)")
end
