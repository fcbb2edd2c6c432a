-- Publish messages that whoever may only publish cannot make.
--
-- A message that says what the receiver is to believe begins with its seal: the SHA-1 of the text and of a
-- secret, which only those know who may read the keys. As the text comes first, no longer text has a seal
-- that can be made of it. Who listens learns no secret, and can only repeat a message. `ended` only has the
-- receiver look, so the begin of the secret is enough, which costs nothing.
--
-- Needs: nothing
-- Gives: push

-- Publish a text, or `ended` and an id if there is no text, to the sessions that are noted to wait for
-- something, each as `<secret>@<session>`.
local function push(queue_name, notes, id, text)
  for waits in string.gmatch(notes, '%S+') do
    local cut = string.find(waits, '@', 1, true) or 0
    local sealed = text and redis.sha1hex(text .. string.sub(waits, 1, cut - 1)) .. ' ' .. text
      or 'ended ' .. string.sub(waits, 1, 6) .. ' ' .. id
    redis.pcall('PUBLISH', queue_name .. ':push:' .. string.sub(waits, cut + 1), sealed)
  end
end
