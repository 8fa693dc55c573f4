-- Copies the hash of a client's search row to the row in connections. The recorder reads this row anyway, so
-- for a client that has not changed, it neither sends the search terms nor reads the search row.
--
-- A process of an earlier version continues to run. It does not set the hash, so the trigger clears it, and
-- the next online message compares the search row itself.

SET LOCAL lock_timeout = '10s';

ALTER TABLE connections ADD COLUMN search_hash bigint;

-- The recorder sets cc.search_hash to `on` on its connections. All other writers change the search row
-- without this column.
CREATE FUNCTION clear_search_hash() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.search_hash := NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER connections_clear_search_hash
    BEFORE UPDATE OF org_id, canonical_facts, dispatchers, tags ON connections
    FOR EACH ROW
    -- A statement of a job also sets columns to the values that they have.
    WHEN (OLD.search_hash IS NOT NULL
          AND current_setting('cc.search_hash', true) IS DISTINCT FROM 'on'
          AND (OLD.org_id, OLD.canonical_facts, OLD.dispatchers, OLD.tags)
              IS DISTINCT FROM (NEW.org_id, NEW.canonical_facts, NEW.dispatchers, NEW.tags))
    EXECUTE FUNCTION clear_search_hash();

-- Cancels a statement of the recorder if it would replace another version of a row than the recorder has read.
CREATE FUNCTION reject_outdated_batch() RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row has changed since the recorder read it' USING ERRCODE = 'CC001';
END
$$;

COMMENT ON COLUMN connections.search_hash IS
    'content_hash of the search row. Null if the row is new, or if another writer than the recorder has changed it.';
