//! Checks of values that are not allowed.

use test_support::services::postgres_config;

#[test]
fn response_timeout_must_be_longer_than_statement_timeout() {
    let mut settings = postgres_config(5432, "test");
    settings.validate().unwrap();
    settings.response_timeout = settings.statement_timeout;
    let error = settings.validate().unwrap_err();
    assert_eq!(error.full_name(), "postgres.response_timeout");
}
