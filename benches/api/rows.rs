//! Connections, made in SQL.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _};

use super::ORG;
use super::support::Services;

/// The name of the client of this number.
pub fn name(number: usize) -> String {
    format!("client-{number:07}")
}

/// One FQDN each, an address, a region of ten, a site of two hundred; every tenth has the playbook
/// worker, every thousandth one that is rare.
pub async fn make(services: &Services, database: &str, count: usize) -> Result<()> {
    let mut connection = services.connect(database).await?;
    // An index is made faster than it is filled.
    sqlx::query("DROP INDEX findable_terms")
        .execute(&mut connection)
        .await?;
    let insert = format!(
        "INSERT INTO connections (client_id, org_id, account, canonical_facts, dispatchers, tags,
                message_id)
         SELECT 'client-' || lpad(i::text, 7, '0'), '{ORG}', '111000',
                jsonb_build_object('insights_id', md5('a' || i)::uuid, 'machine_id', md5('b' || i)::uuid,
                    'fqdn', 'host' || i || '.example.com',
                    'ip_addresses', jsonb_build_array('10.' || i / 65536 || '.' || i / 256 % 256 || '.' || i % 256)),
                CASE WHEN i % 1000 = 0 THEN '{{\"rare-worker\": {{}}, \"echo\": {{}}}}'::jsonb
                     WHEN i % 10 = 0 THEN '{{\"rhc-worker-playbook\": {{}}, \"echo\": {{}}}}'
                     ELSE '{{\"echo\": {{}}}}' END,
                jsonb_build_object('region', 'us' || i % 10, 'site', 'dc' || i % 200), 'm' || i
           FROM generate_series(0, {count} - 1) AS i"
    );
    for statement in [
        insert.as_str(),
        "CREATE INDEX findable_terms ON connection_search USING gin (terms)",
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
