//! Inserts test data into the table `connections`.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _};

use super::ORG_ID;
use super::support::Services;

/// Returns the id of the client with this number.
pub fn client_id(client_number: usize) -> String {
    format!("client-{client_number:07}")
}

/// Inserts `count` connections. Each connection has a unique FQDN and IP address, one of ten
/// regions and one of 200 sites. Every thousandth connection has the dispatcher `rare-worker`.
/// Every tenth of the other connections has the dispatcher `rhc-worker-playbook`.
pub async fn insert_connections(services: &Services, database: &str, count: usize) -> Result<()> {
    let mut connection = services.connect(database).await?;
    // Drop the index and create it again after the inserts. This is faster than an index update for
    // each row.
    sqlx::query("DROP INDEX connection_search_term_hashes")
        .execute(&mut connection)
        .await?;
    let insert = format!(
        "INSERT INTO connections (client_id, org_id, account, canonical_facts, dispatchers, tags,
                message_id)
         SELECT 'client-' || lpad(i::text, 7, '0'), '{ORG_ID}', '111000',
                jsonb_build_object('insights_id', md5('a' || i)::uuid,
                    'machine_id', md5('b' || i)::uuid, 'fqdn', 'host' || i || '.example.com',
                    'ip_addresses', jsonb_build_array(
                        '10.' || i / 65536 || '.' || i / 256 % 256 || '.' || i % 256)),
                CASE WHEN i % 1000 = 0 THEN '{{\"rare-worker\": {{}}, \"echo\": {{}}}}'::jsonb
                     WHEN i % 10 = 0 THEN '{{\"rhc-worker-playbook\": {{}}, \"echo\": {{}}}}'
                     ELSE '{{\"echo\": {{}}}}' END,
                jsonb_build_object('region', 'us' || i % 10, 'site', 'dc' || i % 200), 'm' || i
           FROM generate_series(0, {count} - 1) AS i"
    );
    for statement in [
        insert.as_str(),
        "CREATE INDEX connection_search_term_hashes ON connection_search USING gin (term_hashes)",
        "VACUUM ANALYZE connections",
        "VACUUM ANALYZE connection_search",
        "VACUUM ANALYZE org_connection_deltas",
    ] {
        sqlx::query(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await?;
    }
    Ok(connection.close().await?)
}
