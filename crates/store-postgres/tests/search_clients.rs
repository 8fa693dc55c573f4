//! The search for a client by one of its identifiers reads only indexes.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use test_support::services;

#[tokio::test]
async fn search_for_an_identifier_uses_the_indexes() {
    let port = services::shared_services().await.postgres_port;
    let database_name = services::create_migrated_database().await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    // Without this setting, PostgreSQL reads empty tables as a whole.
    sqlx::query("SET enable_seqscan = off")
        .execute(&mut connection)
        .await
        .unwrap();
    let statements = store_postgres::statements();
    let search = statements
        .iter()
        .find(|(name, _)| *name == "SEARCH_CLIENTS");
    let explain = format!("EXPLAIN {}", search.unwrap().1);
    let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
        .bind("host.example")
        .bind(10_i64)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let plan = plan.join("\n");
    assert!(!plan.contains("Seq Scan"), "{plan}");
    for table in ["connections", "disconnected_clients"] {
        for index in ["pkey", "fqdn", "insights_id", "subscription_manager_id"] {
            assert!(
                plan.contains(&format!("{table}_{index}")),
                "{index}\n{plan}"
            );
        }
    }
}
