-- What the console tells of a trip beside its figures. Entries of before have none of it.

ALTER TABLE entries ADD COLUMN channel TEXT;

ALTER TABLE entries ADD COLUMN sentence TEXT;

-- Text of the reply, where its profile has log_sample = true.
ALTER TABLE entries ADD COLUMN sample TEXT;
