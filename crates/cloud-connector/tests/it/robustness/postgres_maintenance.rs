//! Maintenance statements over many rows in PostgreSQL.

use std::time::Duration;

use sqlx::Connection as _;
use test_support::{Deployment, eventually};

/// Makes PostgreSQL reject each statement that changes more than 1,000 rows of these tables. Such a
/// statement would exceed the statement timeout if there were enough rows.
async fn reject_large_statements(deployment: &Deployment) {
    for sql in [
        "CREATE FUNCTION reject_large_statement() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF (SELECT count(*) FROM old_rows) > 1000 THEN
                 RAISE EXCEPTION 'the statement changes too many rows';
             END IF;
             RETURN NULL;
         END $$",
        "CREATE TRIGGER reject_large_statement AFTER DELETE ON disconnected_clients
         REFERENCING OLD TABLE AS old_rows
         FOR EACH STATEMENT EXECUTE FUNCTION reject_large_statement()",
        "CREATE TRIGGER reject_large_statement AFTER DELETE ON connection_search
         REFERENCING OLD TABLE AS old_rows
         FOR EACH STATEMENT EXECUTE FUNCTION reject_large_statement()",
        "CREATE TRIGGER reject_large_statement AFTER DELETE ON dead_letters
         REFERENCING OLD TABLE AS old_rows
         FOR EACH STATEMENT EXECUTE FUNCTION reject_large_statement()",
        "CREATE TRIGGER reject_large_statement AFTER UPDATE ON connections
         REFERENCING OLD TABLE AS old_rows
         FOR EACH STATEMENT EXECUTE FUNCTION reject_large_statement()",
    ] {
        deployment.execute(sql).await;
    }
}

#[tokio::test]
async fn retention_deletes_many_clients_in_small_statements() {
    let settings = [("updaters.interval", "500ms")];
    let deployment = Deployment::distributed(&settings).await;
    reject_large_statements(&deployment).await;
    deployment
        .execute(
            "WITH inserted AS (
                INSERT INTO disconnected_clients (client_id, org_id, account, dialect, kind,
                       topic_prefix, canonical_facts, dispatchers, tags, client_name,
                       client_version, message_sent, tenant_lookup_failure_count, disconnected_at)
                SELECT md5(n::text), '1', '', 'status', 'host', 'p', '{}', '{}', '{}', '', '',
                       'epoch', 0, 'epoch' FROM generate_series(1, 3500) AS n
                RETURNING client_id)
             INSERT INTO connection_search (client_id, org_id, content_hash, term_hashes)
             SELECT client_id, '1', 0, '{1}' FROM inserted",
        )
        .await;
    eventually("the deletion of all clients", || async {
        let sql = "SELECT (SELECT count(*) FROM disconnected_clients)
                        + (SELECT count(*) FROM connection_search)";
        (deployment.count_rows(sql).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn operator_commands_change_many_rows_in_small_statements() {
    let deployment = Deployment::distributed(&[]).await;
    reject_large_statements(&deployment).await;
    deployment
        .execute(
            "INSERT INTO connections (client_id, org_id, tenant_lookup_timestamp,
                    tenant_lookup_failure_count)
             SELECT md5(n::text), '', now(), 30 FROM generate_series(1, 3500) AS n",
        )
        .await;
    deployment
        .execute(
            "INSERT INTO dead_letters (client_id, fingerprint, topic, payload, size, sha256,
                    reason, detail, first_received, last_received)
             SELECT n, n, 't', '', 0, '', 'invalid_json', '', now(), now()
               FROM generate_series(1, 3500) AS n",
        )
        .await;
    for (args, expected_output) in [
        (["tenantless", "retry", "--all"], "3500 reset"),
        (["dead-letters", "purge", "--all"], "3500 deleted"),
    ] {
        // The command cannot connect to the database in time if the machine is very busy.
        let (code, output) = eventually("the command to connect", || async {
            let (code, output) = deployment.run_command(&args).await;
            (!output.contains("cannot connect")).then_some((code, output))
        })
        .await;
        assert_eq!(code, Some(0), "{output}");
        assert!(output.starts_with(expected_output), "{output}");
    }
    let sql = "SELECT count(*) FROM connections WHERE tenant_lookup_failure_count > 0";
    assert_eq!(deployment.count_rows(sql).await, 0);
}

#[tokio::test]
async fn reconnects_do_not_increase_the_number_of_rows_that_a_count_reads() {
    let deployment = Deployment::distributed(&[]).await;
    deployment
        .execute(
            "INSERT INTO connections (client_id, org_id)
             SELECT md5(n::text), 10000 + n % 500 FROM generate_series(1, 2000) AS n",
        )
        .await;
    deployment
        .execute(
            "DO $$ BEGIN
                FOR round IN 1..20 LOOP
                    CREATE TEMP TABLE reconnecting ON COMMIT DROP AS SELECT * FROM connections;
                    DELETE FROM connections;
                    INSERT INTO connections SELECT * FROM reconnecting;
                    COMMIT;
                END LOOP;
             END $$",
        )
        .await;
    let counter_rows = deployment
        .count_rows("SELECT count(*) FROM org_connection_deltas")
        .await;
    assert!(
        counter_rows <= 1000,
        "{counter_rows} rows for 500 organizations"
    );
    assert_eq!(deployment.list_client_ids().await.len(), 4);
}

/// Two transactions change the counts of the same organizations in opposite order. If one waited
/// for the other, they would deadlock.
#[tokio::test]
async fn concurrent_writers_do_not_wait_for_the_counts_of_each_other() {
    let deployment = Deployment::distributed(&[]).await;
    let Deployment::Distributed(distributed) = &deployment else {
        unreachable!("the test starts a distributed deployment");
    };
    let mut first_connection = distributed.cluster.connect_to_database().await;
    let mut second_connection = distributed.cluster.connect_to_database().await;
    let mut first = first_connection.begin().await.unwrap();
    let mut second = second_connection.begin().await.unwrap();
    for (client_id, org_id, is_first) in [
        ("a", "10000", true),
        ("b", "20000", false),
        ("c", "20000", true),
        ("d", "10000", false),
    ] {
        let transaction = if is_first { &mut first } else { &mut second };
        let insert = sqlx::query("INSERT INTO connections (client_id, org_id) VALUES ($1, $2)")
            .bind(client_id)
            .bind(org_id)
            .execute(&mut **transaction);
        tokio::time::timeout(Duration::from_secs(20), insert)
            .await
            .expect("an insert waits for another transaction")
            .unwrap();
    }
    first.commit().await.unwrap();
    second.commit().await.unwrap();
    let sql = "SELECT COALESCE(sum(delta), 0)::bigint FROM org_connection_deltas
                WHERE org_id = '10000'";
    assert_eq!(deployment.count_rows(sql).await, 2);
}
