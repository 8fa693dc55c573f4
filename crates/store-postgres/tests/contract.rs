//! Runs the contract of the repositories on PostgreSQL.

mod postgres {
    store_contract::contract_tests!(test_support::stores::open_postgres);
}
