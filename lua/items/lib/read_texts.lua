-- Hold what a script has read of options since it has last written some: id → their text, or false. It reads
-- them for several reasons.
--
-- Needs: nothing
-- Gives: read_texts

local read_texts = {}
