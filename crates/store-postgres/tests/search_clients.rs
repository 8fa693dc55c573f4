//! The search for a client by one of its identifiers, and the deletion of expired history, read only indexes.

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
    for index in [
        "connection_search_fqdn",
        "connection_search_insights_id",
        "connection_search_subscription_manager_id",
        "connections_pkey",
        "disconnected_clients_pkey",
    ] {
        assert!(plan.contains(index), "{index}\n{plan}");
    }
}

#[tokio::test]
async fn deletion_of_expired_history_reads_an_index_in_the_order_of_time() {
    let port = services::shared_services().await.postgres_port;
    let database_name = services::create_migrated_database().await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for sql in [
        "INSERT INTO presence_history (client_id, number, at, org_id, status, reason)
         SELECT n % 1000, n, to_timestamp(n), '1', 'online', 'connected'
           FROM generate_series(1, 50000) AS n",
        "ANALYZE presence_history",
    ] {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    let statements = store_postgres::statements();
    let delete = statements
        .iter()
        .find(|(name, _)| *name == "delete_history_before");
    let explain = format!("EXPLAIN {}", delete.unwrap().1);
    for expired in [0, 10_000, 50_000] {
        let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain.clone()))
            .bind(time::OffsetDateTime::from_unix_timestamp(expired).unwrap())
            .bind(1000_i64)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let plan = plan.join("\n");
        let index = "Index Scan using presence_history_at on presence_history";
        assert!(plan.contains(index), "{expired}\n{plan}");
        assert!(!plan.contains("Sort"), "{expired}\n{plan}");
    }
}
