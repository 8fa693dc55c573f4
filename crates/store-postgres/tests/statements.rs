//! Prepares every statement on the migrated schema. A statement that names a missing table, column or
//! function fails.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqlSafeStr as _};
use store_contract::sources;
use test_support::services;

const CRATE_DIR: &str = env!("CARGO_MANIFEST_DIR");

#[tokio::test]
async fn postgres_prepares_every_statement() {
    let port = services::shared_services().await.postgres_port;
    let database_name = services::create_database(port).await;
    let settings = services::postgres_config(port, &database_name);
    store_postgres::migrate(&settings).await.unwrap();
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (name, sql) in store_postgres::statements() {
        let statement = AssertSqlSafe(sql.clone()).into_sql_str();
        let result = (&mut connection).prepare(statement).await;
        assert!(result.is_ok(), "{name}: {:?}\n{sql}", result.err());
    }
    let unknown_column = "SELECT unknown_column FROM connections".into_sql_str();
    assert!((&mut connection).prepare(unknown_column).await.is_err());
}

#[test]
fn every_statement_and_every_migration_of_the_backend_is_listed() {
    sources::check_that_every_statement_is_listed(CRATE_DIR, &store_postgres::statements());
    sources::check_that_every_migration_is_listed(CRATE_DIR);
}
