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

ignore = {
  -- Functions are nested by the linker, and many have a local or a parameter `ids`.
  "431",
  "432",
  "211/any_scheduled", -- read in each script that needs `check`, used in some
  "231/emit_all", -- these two get their values only where events are kept
  "311/emit",
}
