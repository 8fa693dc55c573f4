//! Runs the contract of the repositories on SQLite.

mod sqlite {
    store_contract::contract_tests!(test_support::stores::open_sqlite);
}
