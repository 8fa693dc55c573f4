//! Prepares every statement on the migrated schema. A statement that names a missing table or column
//! fails.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _, SqliteConnection};
use store_contract::sources;
use store_sqlite::SqliteStore;

const CRATE_DIR: &str = env!("CARGO_MANIFEST_DIR");

#[tokio::test]
async fn sqlite_prepares_every_statement() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    SqliteStore::open(&path).await.unwrap();
    let url = format!("sqlite://{}", path.display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    for (name, sql) in store_sqlite::statements() {
        let statement = AssertSqlSafe(sql.clone()).into_sql_str();
        let result = (&mut connection).prepare(statement).await;
        assert!(result.is_ok(), "{name}: {:?}\n{sql}", result.err());
    }
    let unknown_column = "SELECT unknown_column FROM connections".into_sql_str();
    assert!((&mut connection).prepare(unknown_column).await.is_err());
}

#[test]
fn every_statement_and_every_migration_of_sqlite_is_listed() {
    sources::check_that_every_statement_is_listed(CRATE_DIR, &store_sqlite::statements());
    sources::check_that_every_migration_is_listed(CRATE_DIR);
}
