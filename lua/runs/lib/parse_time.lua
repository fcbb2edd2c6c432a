-- Read times as JSON has them.
--
-- Needs: nothing
-- Gives: parse_time

-- Return the days from 1970 to a day of the Gregorian calendar, whose years begin with March here.
local function days_to(year, month, day)
  year = month <= 2 and year - 1 or year
  local era = math.floor(year / 400)
  local of_era = year - era * 400
  local of_year = math.floor((153 * ((month + 9) % 12) + 2) / 5) + day - 1
  return era * 146097 + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100) + of_year - 719468
end

-- Return a time as JSON has it (RFC 3339) in ms since 1970, rounded up, so never too early; nil: it is none.
local function parse_time(text)
  local date, clock = '^(%d%d%d%d)%-(%d%d)%-(%d%d)', '[Tt ](%d%d):(%d%d):(%d%d)(%.?%d*)(.*)$'
  local year, month, day, hour, minute, second, part, zone = string.match(text, date .. clock)
  local sign, hours, minutes = string.match(zone or '', '^([+-])(%d%d):?(%d%d)$')
  if not year or not (sign or zone == 'Z' or zone == 'z') then return nil end
  local ahead = sign and (hours * 60 + minutes) * (sign == '-' and -1 or 1) or 0
  local of_day = (hour * 60 + minute - ahead) * 60 + second
  local days = days_to(tonumber(year), tonumber(month), tonumber(day))
  return (days * 86400 + of_day) * 1000 + math.ceil((tonumber('0' .. part) or 0) * 1000)
end
