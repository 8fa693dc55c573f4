-- Counting an organisation's connections, and finding them by what they said, without reading them all.
--
-- Kept by triggers: whoever writes the table (the Go implementation beside us, an operator) keeps
-- these right. They work a statement at a time, so that a batch costs a few questions, not a few a row.

-- What is counted must be what was there when the triggers were made.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
-- A large table takes longer than any statement of ours may.
SET LOCAL statement_timeout = 0;
-- While this waits for others to leave the table, everybody else waits behind it: rather give up.
SET LOCAL lock_timeout = '10s';
SET LOCAL work_mem = '128MB';
SET LOCAL maintenance_work_mem = '256MB';

-- What each statement changed in the number of an organisation's connections. Rows are only added, so
-- that writers never wait for each other; now and then they are folded into one an organisation.
CREATE TABLE org_counts (
    org_id text COLLATE "C" NOT NULL,
    change bigint NOT NULL
);
CREATE INDEX org_counts_org_id ON org_counts (org_id) INCLUDE (change);

-- How clients are found. A row stays when its client leaves, until that is forgotten: a client that
-- comes back as it was, as nearly all do in a storm, costs a look and no write.
CREATE TABLE findable (
    client_id text COLLATE "C" NOT NULL PRIMARY KEY,
    org_id    text COLLATE "C" NOT NULL,
    -- Of all that the row was made from.
    source    bigint NOT NULL,
    -- The FQDN, in lower case: for those who know how a name begins.
    name      text COLLATE "C",
    -- Its words, as hashes: short whatever clients say, and those of different organisations are
    -- different. Of a client with more than 256 the first are kept: nobody's message may cost more.
    terms     bigint[] NOT NULL
) WITH (fillfactor = 90);

-- A fact as a word. Letters' case does not matter, nor do the dashes of a UUID.
CREATE FUNCTION fact_word(key text, said text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'fact:' || key || chr(31) || CASE
        WHEN length(said) IN (32, 36) AND replace(lower(said COLLATE "C"), '-', '') ~ '^[0-9a-f]{32}$'
        THEN replace(lower(said COLLATE "C"), '-', '') ELSE lower(said COLLATE "C") END
$$;

-- The words that a client is found by: each value of a fact or tag, and those of a list one by one. In
-- a dispatcher's name `-` and `_` are the same. One statement, which PostgreSQL takes into the one that
-- asks: called for each row, it would cost five times as much.
CREATE FUNCTION connection_words(facts jsonb, workers jsonb, tags jsonb) RETURNS SETOF text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT fact_word(key, value #>> '{}')
      FROM jsonb_each(CASE jsonb_typeof(facts) WHEN 'object' THEN facts ELSE '{}' END) AS e (key, value)
     WHERE jsonb_typeof(value) NOT IN ('array', 'object')
    UNION ALL
    SELECT fact_word(key, said)
      FROM jsonb_each(CASE jsonb_typeof(facts) WHEN 'object' THEN facts ELSE '{}' END) AS e (key, value)
     CROSS JOIN LATERAL jsonb_array_elements_text(
           CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END) AS s (said)
    UNION ALL
    SELECT 'dispatcher:' || replace(key, '_', '-')
      FROM jsonb_object_keys(CASE jsonb_typeof(workers) WHEN 'object' THEN workers ELSE '{}' END) AS e (key)
    UNION ALL
    SELECT 'tag:' || key || chr(31) || (value #>> '{}')
      FROM jsonb_each(CASE jsonb_typeof(tags) WHEN 'object' THEN tags ELSE '{}' END) AS e (key, value)
     WHERE jsonb_typeof(value) NOT IN ('array', 'object')
    UNION ALL
    SELECT 'tag:' || key || chr(31) || said
      FROM jsonb_each(CASE jsonb_typeof(tags) WHEN 'object' THEN tags ELSE '{}' END) AS e (key, value)
     CROSS JOIN LATERAL jsonb_array_elements_text(
           CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END) AS s (said)
$$;

-- Whether a client says what it said before. Nobody but the client itself could make two that are alike.
CREATE FUNCTION connection_source(org text, facts jsonb, workers jsonb, tags jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(org, 0) # jsonb_hash_extended(facts, 1) # jsonb_hash_extended(workers, 2)
         # jsonb_hash_extended(COALESCE(tags, 'null'), 3)
$$;

CREATE FUNCTION connection_name(facts jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left(lower((facts ->> 'fqdn') COLLATE "C"), 255)
$$;

CREATE FUNCTION connections_changed() RETURNS trigger
LANGUAGE plpgsql
-- The plans of the first call serve all later ones: made while the tables are small, they must not
-- read whole tables when these have grown.
SET enable_seqscan = off AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE org_counts, findable;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO org_counts SELECT org_id, -count(*) FROM old_rows WHERE org_id <> '' GROUP BY org_id;
        RETURN NULL;
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO org_counts SELECT org_id, count(*) FROM new_rows WHERE org_id <> '' GROUP BY org_id;
    ELSE
        INSERT INTO org_counts
        SELECT org_id, sum(change) FROM (
            SELECT org_id, 1 AS change FROM new_rows UNION ALL SELECT org_id, -1 FROM old_rows) AS c
         WHERE org_id <> '' GROUP BY org_id HAVING sum(change) <> 0;
    END IF;
    INSERT INTO findable (client_id, org_id, source, name, terms)
    SELECT client_id, org_id, connection_source(org_id, canonical_facts, dispatchers, tags),
           connection_name(canonical_facts),
           ARRAY(SELECT hashtextextended(org_id || chr(31) || word, 0)
                   FROM connection_words(canonical_facts, dispatchers, tags) AS w (word)
                  WHERE word IS NOT NULL LIMIT 256)
      FROM new_rows AS n
     WHERE org_id <> '' AND connection_source(org_id, canonical_facts, dispatchers, tags)
           IS DISTINCT FROM (SELECT f.source FROM findable AS f WHERE f.client_id = n.client_id)
    ON CONFLICT (client_id) DO UPDATE SET org_id = excluded.org_id, source = excluded.source,
           name = excluded.name, terms = excluded.terms;
    RETURN NULL;
END
$$;

CREATE TRIGGER connections_inserted AFTER INSERT ON connections
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION connections_changed();
CREATE TRIGGER connections_updated AFTER UPDATE ON connections
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION connections_changed();
CREATE TRIGGER connections_deleted AFTER DELETE ON connections
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION connections_changed();
CREATE TRIGGER connections_truncated AFTER TRUNCATE ON connections
    FOR EACH STATEMENT EXECUTE FUNCTION connections_changed();

INSERT INTO org_counts SELECT org_id, count(*) FROM connections WHERE org_id <> '' GROUP BY org_id;
INSERT INTO findable (client_id, org_id, source, name, terms)
SELECT client_id, org_id, connection_source(org_id, canonical_facts, dispatchers, tags),
       connection_name(canonical_facts),
       ARRAY(SELECT hashtextextended(org_id || chr(31) || word, 0)
                   FROM connection_words(canonical_facts, dispatchers, tags) AS w (word)
                  WHERE word IS NOT NULL LIMIT 256)
  FROM connections WHERE org_id <> '';

CREATE INDEX findable_org_id_name ON findable (org_id, name) WHERE name IS NOT NULL;
CREATE INDEX findable_terms ON findable USING gin (terms);
ANALYZE org_counts, findable;
