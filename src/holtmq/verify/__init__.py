"""The durability check: kill a broker, cut its power, and compare what it kept with what it promised."""
