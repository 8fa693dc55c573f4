//! Tests of section 3 of the protocol specification: messages that can never be processed become
//! dead letters. Also tests the operator commands for dead letters.

use serde_json::json;

use super::{connect_client, publish_online_and_wait};
use test_support::each_deployment;
use test_support::mqtt::{control_out_topic, online_message};
use test_support::{Deployment, eventually};

each_deployment!(
    operator_commands_list_show_and_purge_dead_letters,
    a_replayed_dead_letter_is_applied_or_rejected_again,
    the_number_of_stored_dead_letters_per_client_is_limited
        with &[("dead_letters.max_per_client", "3")],
    a_row_rejected_by_the_database_becomes_a_dead_letter_and_other_rows_are_written,
);

async fn operator_commands_list_show_and_purge_dead_letters(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "listed").await;
    client
        .publish(&control_out_topic(&client_id), b"{\"type\":\x1b[2J")
        .await
        .unwrap();
    client
        .publish(&control_out_topic(&client_id), b"\xff\xfe\x00")
        .await
        .unwrap();
    let dead_letters = deployment.wait_for_dead_letters(&client_id, 2).await;
    let dead_letter_id = dead_letters[1]["id"].to_string();
    let (code, output) = deployment.run_command(&["dead-letters", "list"]).await;
    assert_eq!(code, Some(0));
    assert!(
        output.contains(&client_id) && output.contains("invalid_json"),
        "{output}"
    );
    let summary = ["dead-letters", "summary", "-o", "json"];
    let (code, output) = deployment.run_command(&summary).await;
    assert_eq!(code, Some(0), "{output}");
    let summary: serde_json::Value = serde_json::from_str(&output).unwrap();
    let reason = &summary["reasons"][0];
    assert_eq!(reason["reason"], "invalid_json", "{summary}");
    assert_eq!(
        (&reason["dead_letters"], &reason["clients"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(summary["total"]["occurrences"], 2);
    let (code, output) = deployment.run_command(&["dead-letters", "summary"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.starts_with("REASON ") && output.contains("\ntotal "),
        "{output}"
    );
    let (code, output) = deployment
        .run_command(&["dead-letters", "show", &dead_letter_id])
        .await;
    assert_eq!(code, Some(0));
    assert!(output.contains(&control_out_topic(&client_id)), "{output}");
    assert!(
        output.contains("\\u{1b}[2J"),
        "the control character is not escaped: {output}"
    );
    let (code, output) = deployment
        .run_command(&["dead-letters", "show", &dead_letters[0]["id"].to_string()])
        .await;
    assert_eq!(code, Some(0));
    assert!(output.contains("ff fe 00"), "{output}");
    let (code, output) = deployment
        .run_command(&["dead-letters", "show", "999999"])
        .await;
    assert_eq!(code, Some(1));
    assert!(output.contains("dead-letters list"), "{output}");
    // Without a filter, `purge` fails and deletes nothing.
    let (code, output) = deployment.run_command(&["dead-letters", "purge"]).await;
    assert_eq!(code, Some(1));
    assert!(output.contains("--all"), "{output}");
    let (code, output) = deployment
        .run_command(&[
            "dead-letters",
            "purge",
            "--client",
            &client_id,
            "--reason",
            "invalid_json",
        ])
        .await;
    assert_eq!((code, output.trim()), (Some(0), "2 deleted"));
    assert!(deployment.dead_letters().await.is_empty());
    let dead_letters_metric = deployment
        .read_metric("cloud_connector_dead_letters_total", "invalid_json")
        .await;
    assert!(
        (dead_letters_metric - 2.0).abs() < 0.1,
        "{dead_letters_metric}"
    );
}

async fn a_replayed_dead_letter_is_applied_or_rejected_again(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "replayed").await;
    client
        .publish(&control_out_topic(&client_id), b"[]")
        .await
        .unwrap();
    let dead_letters = deployment.wait_for_dead_letters(&client_id, 1).await;
    let dead_letter_id = dead_letters[0]["id"].to_string();
    let (code, output) = deployment
        .run_command(&["dead-letters", "replay", &dead_letter_id])
        .await;
    if deployment.has_external_broker() {
        assert_eq!(code, Some(0), "{output}");
    } else {
        assert_eq!(code, Some(1), "{output}");
        assert!(
            output.contains("rejected again: invalid_schema"),
            "{output}"
        );
    }
    // The rejected message is a dead letter again. The connector still processes later messages of
    // the client.
    deployment.wait_for_dead_letters(&client_id, 1).await;
    publish_online_and_wait(&deployment, &client_id, &mut client, "here").await;
    // A replayed online message does not replace a newer online message.
    let old_dead_letter_id = replace_payload_with_online_message(&deployment, &client_id).await;
    deployment
        .run_command(&["dead-letters", "replay", &old_dead_letter_id])
        .await;
    deployment.wait_for_dead_letters(&client_id, 0).await;
    assert_eq!(
        deployment.client_status(&client_id).await["tags"]["message_label"],
        "here"
    );
    // After an upgrade, the connector may be able to decode a dead letter. A replay then applies
    // the message. To simulate the upgrade, the test replaces the stored payload with a valid
    // payload.
    client
        .publish(&control_out_topic(&client_id), b"[2]")
        .await
        .unwrap();
    let new_dead_letter_id = replace_payload_with_online_message(&deployment, &client_id).await;
    let (code, output) = deployment
        .run_command(&["dead-letters", "replay", &new_dead_letter_id])
        .await;
    assert_eq!(code, Some(0), "{output}");
    deployment
        .wait_for_status(&client_id, |status| status["tags"]["make"] == "raw")
        .await;
    deployment.wait_for_dead_letters(&client_id, 0).await;
}

/// Replaces the payload of the client's only dead letter with an online message. Returns the id of
/// the dead letter.
async fn replace_payload_with_online_message(deployment: &Deployment, client_id: &str) -> String {
    let dead_letters = deployment.wait_for_dead_letters(client_id, 1).await;
    let dead_letter_id = dead_letters[0]["id"].as_i64().unwrap();
    let payload = online_message().to_string().into_bytes();
    let size = i64::try_from(payload.len()).unwrap();
    match deployment {
        Deployment::Embedded(connector) => {
            use sqlx::Connection as _;
            let path = connector.data_dir().join("cloud-connector.db");
            let url = format!("sqlite://{}", path.display());
            let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query("UPDATE dead_letters SET payload = ?, size = ? WHERE id = ?")
                .bind(payload)
                .bind(size)
                .bind(dead_letter_id)
                .execute(&mut database)
                .await
                .unwrap();
        }
        Deployment::Distributed(distributed) => {
            let mut database = distributed.cluster.connect_to_database().await;
            sqlx::query("UPDATE dead_letters SET payload = $1, size = $2 WHERE id = $3")
                .bind(payload)
                .bind(size)
                .bind(dead_letter_id)
                .execute(&mut database)
                .await
                .unwrap();
        }
    }
    dead_letter_id.to_string()
}

async fn the_number_of_stored_dead_letters_per_client_is_limited(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "many").await;
    for n in 0..10 {
        let garbage = format!("garbage {n}");
        client
            .publish(&control_out_topic(&client_id), garbage.as_bytes())
            .await
            .unwrap();
    }
    publish_online_and_wait(&deployment, &client_id, &mut client, "here").await;
    let dead_letters = deployment.wait_for_dead_letters(&client_id, 3).await;
    let (_, latest_payload) = deployment
        .run_command(&[
            "dead-letters",
            "show",
            &dead_letters[0]["id"].to_string(),
            "--raw",
        ])
        .await;
    assert_eq!(latest_payload, "garbage 9");
}

/// No message can make the database reject a row, because the connector validates all values before
/// it writes them. Therefore the test adds a constraint to the database. The constraint rejects
/// the row of one client.
async fn a_row_rejected_by_the_database_becomes_a_dead_letter_and_other_rows_are_written(
    deployment: Deployment,
) {
    let (rejected_id, mut rejected_client) = connect_client(&deployment, "rejected-row").await;
    make_database_reject_row(&deployment, &rejected_id).await;
    let mut other_clients = Vec::new();
    for n in 0..20 {
        other_clients.push(connect_client(&deployment, &format!("other{n}")).await);
    }
    // All clients publish at the same time, so the rejected row is in one batch with other rows.
    let mut publish_tasks = Vec::new();
    for (client_id, mut client) in other_clients {
        publish_tasks.push(tokio::spawn(async move {
            client
                .must_publish(&control_out_topic(&client_id), &online_message())
                .await;
            (client_id, client)
        }));
    }
    rejected_client
        .must_publish(&control_out_topic(&rejected_id), &online_message())
        .await;
    let mut other_clients = Vec::new();
    for task in publish_tasks {
        other_clients.push(task.await.unwrap());
    }
    for (client_id, _client) in &other_clients {
        deployment.wait_until_connected(client_id).await;
    }
    let dead_letters = deployment.wait_for_dead_letters(&rejected_id, 1).await;
    assert_eq!(dead_letters[0]["reason"], "rejected_by_database");
    assert_eq!(
        deployment.client_status(&rejected_id).await["status"],
        "disconnected"
    );
    eventually("no batch to be retried", || async {
        let retrying_batches = deployment
            .read_metric("cloud_connector_record_batches_retrying", "")
            .await;
        (retrying_batches < 0.5).then_some(())
    })
    .await;
    let status = deployment.client_status(&other_clients[0].0).await;
    assert_eq!(status["tags"], json!({"make": "raw"}));
}

/// Adds a constraint or trigger that makes the database reject the row of this client.
async fn make_database_reject_row(deployment: &Deployment, client_id: &str) {
    match deployment {
        Deployment::Embedded(connector) => {
            use sqlx::Connection as _;
            let path = connector.data_dir().join("cloud-connector.db");
            let url = format!("sqlite://{}", path.display());
            let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
            let trigger = format!(
                "CREATE TRIGGER reject_row BEFORE INSERT ON connections
                 WHEN new.client_id = '{client_id}'
                 BEGIN SELECT RAISE(ABORT, 'rejected by the test'); END"
            );
            sqlx::query(sqlx::AssertSqlSafe(trigger))
                .execute(&mut database)
                .await
                .unwrap();
        }
        Deployment::Distributed(distributed) => {
            let mut database = distributed.cluster.connect_to_database().await;
            let constraint = format!(
                "ALTER TABLE connections
                 ADD CONSTRAINT reject_row CHECK (client_id <> '{client_id}')"
            );
            sqlx::query(sqlx::AssertSqlSafe(constraint))
                .execute(&mut database)
                .await
                .unwrap();
        }
    }
}
