-- Makes autovacuum run after 2 % of the rows have changed. With the default of 20 %, a table of four million
-- rows collects 800,000 dead rows, which every scan of an index reads.
--
-- The statements need a lock that conflicts only with other changes of the schema and with vacuum. They read and
-- write no rows.

SET LOCAL lock_timeout = '10s';

ALTER TABLE connections
    SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE disconnected_clients
    SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE inventory_reports
    SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE connection_search
    SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE org_connection_deltas
    SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
