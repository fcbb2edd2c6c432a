"""Users join the roles of a guild: guild.flow says what happens, guild.platforms is where it happens."""
