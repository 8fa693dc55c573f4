//! Section 3: messages that can never be processed, and what an operator does with them.

use serde_json::{Value, json};

use super::{client, settle};
use crate::each_deployment;
use crate::support::mqtt::{control_out, online};
use crate::support::{Deployment, eventually};

each_deployment!(
    a_dead_letter_is_listed_shown_and_purged,
    a_dead_letter_that_is_replayed_is_taken_or_refused_again,
    dead_letters_are_capped_per_client with &[("dead_letters.max_per_client", "3")],
    a_row_that_the_database_refuses_is_found_and_stops_nobody,
);

async fn a_dead_letter_is_listed_shown_and_purged(subject: Deployment) {
    let (me, mut client) = client(&subject, "listed").await;
    client
        .publish(&control_out(&me), b"{\"type\":\x1b[2J")
        .await
        .unwrap();
    client
        .publish(&control_out(&me), b"\xff\xfe\x00")
        .await
        .unwrap();
    let letters = subject.wait_for_letters(&me, 2).await;
    let number = letters[1]["number"].to_string();
    let (code, text) = subject.command(&["dead-letters", "list"]).await;
    assert_eq!(code, Some(0));
    assert!(text.contains(&me) && text.contains("not_json"), "{text}");
    let (code, text) = subject.command(&["dead-letters", "show", &number]).await;
    assert_eq!(code, Some(0));
    assert!(text.contains(&control_out(&me)), "{text}");
    assert!(text.contains("\\u{1b}[2J"), "the terminal is safe: {text}");
    let (code, text) = subject
        .command(&["dead-letters", "show", &letters[0]["number"].to_string()])
        .await;
    assert_eq!(code, Some(0));
    assert!(text.contains("ff fe 00"), "{text}");
    let (code, text) = subject.command(&["dead-letters", "show", "999999"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("dead-letters list"), "{text}");
    // Nothing is forgotten by accident.
    let (code, text) = subject.command(&["dead-letters", "purge"]).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("--all"), "{text}");
    let (code, text) = subject
        .command(&[
            "dead-letters",
            "purge",
            "--client",
            &me,
            "--reason",
            "not_json",
        ])
        .await;
    assert_eq!((code, text.trim()), (Some(0), "2 forgotten"));
    assert!(subject.dead_letters().await.is_empty());
    let counted = subject
        .metric("cloud_connector_dead_letters_total", "not_json")
        .await;
    assert!((counted - 2.0).abs() < 0.1, "{counted}");
}

async fn a_dead_letter_that_is_replayed_is_taken_or_refused_again(subject: Deployment) {
    let (me, mut client) = client(&subject, "replayed").await;
    client.publish(&control_out(&me), b"[]").await.unwrap();
    let letters = subject.wait_for_letters(&me, 1).await;
    let number = letters[0]["number"].to_string();
    let (code, text) = subject.command(&["dead-letters", "replay", &number]).await;
    if subject.has_outside_broker() {
        assert_eq!(code, Some(0), "{text}");
    } else {
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("refused again: wrong_shape"), "{text}");
    }
    // It is there again, and a good one behind it is not held up.
    subject.wait_for_letters(&me, 1).await;
    settle(&subject, &me, &mut client, "here").await;
    // What it has said since is not undone by it.
    let old = make_readable(&subject, &me).await;
    subject.command(&["dead-letters", "replay", &old]).await;
    subject.wait_for_letters(&me, 0).await;
    assert_eq!(subject.status(&me).await["tags"]["mark"], "here");
    // After an upgrade that can read it, it is processed: made up here in the database.
    client.publish(&control_out(&me), b"[2]").await.unwrap();
    let good = make_readable(&subject, &me).await;
    let (code, text) = subject.command(&["dead-letters", "replay", &good]).await;
    assert_eq!(code, Some(0), "{text}");
    subject
        .wait_until(&me, |status| status["tags"]["make"] == "raw")
        .await;
    subject.wait_for_letters(&me, 0).await;
}

/// Turns the client's dead letter into a message that can be read. Returns its number.
async fn make_readable(subject: &Deployment, me: &str) -> String {
    let letters = subject.wait_for_letters(me, 1).await;
    let number = letters[0]["number"].as_i64().unwrap();
    let payload = online().to_string().into_bytes();
    let size = i64::try_from(payload.len()).unwrap();
    match subject {
        Deployment::Embedded(connector) => {
            use sqlx::Connection as _;
            let path = connector.data_dir().join("cloud-connector.db");
            let url = format!("sqlite://{}", path.display());
            let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query("UPDATE dead_letters SET payload = ?, size = ? WHERE id = ?")
                .bind(payload)
                .bind(size)
                .bind(number)
                .execute(&mut database)
                .await
                .unwrap();
        }
        #[cfg(feature = "external-services")]
        Deployment::Distributed(both) => {
            let mut database = both.0.connect().await;
            sqlx::query("UPDATE dead_letters SET payload = $1, size = $2 WHERE id = $3")
                .bind(payload)
                .bind(size)
                .bind(number)
                .execute(&mut database)
                .await
                .unwrap();
        }
    }
    number.to_string()
}

async fn dead_letters_are_capped_per_client(subject: Deployment) {
    let (me, mut client) = client(&subject, "many").await;
    for n in 0..10 {
        let garbage = format!("garbage {n}");
        client
            .publish(&control_out(&me), garbage.as_bytes())
            .await
            .unwrap();
    }
    settle(&subject, &me, &mut client, "here").await;
    let letters = subject.wait_for_letters(&me, 3).await;
    let (_, latest) = subject
        .command(&[
            "dead-letters",
            "show",
            &letters[0]["number"].to_string(),
            "--raw",
        ])
        .await;
    assert_eq!(latest, "garbage 9");
}

/// What either database would refuse is found in Rust first, so the database is told to refuse.
async fn a_row_that_the_database_refuses_is_found_and_stops_nobody(subject: Deployment) {
    let (bad, mut odd) = client(&subject, "refused-row").await;
    refuse(&subject, &bad).await;
    let mut others = Vec::new();
    for n in 0..20 {
        others.push(client(&subject, &format!("beside{n}")).await);
    }
    // All at once, so that the bad one stands in the midst of a batch.
    let mut publishing = Vec::new();
    for (name, mut client) in others {
        publishing.push(tokio::spawn(async move {
            client.must_publish(&control_out(&name), &online()).await;
            (name, client)
        }));
    }
    odd.must_publish(&control_out(&bad), &online()).await;
    let mut names = Vec::new();
    for published in publishing {
        names.push(published.await.unwrap());
    }
    for (name, _client) in &names {
        subject.wait_for(name, true).await;
    }
    let letters = subject.wait_for_letters(&bad, 1).await;
    assert_eq!(letters[0]["reason"], "refused");
    assert_eq!(subject.status(&bad).await["status"], "disconnected");
    let ready = eventually("ready", || async {
        let held = subject
            .metric("cloud_connector_record_batches_retrying", "")
            .await;
        (held < 0.5).then_some(true)
    })
    .await;
    assert!(ready);
    let shown: Value = subject.status(&names[0].0).await;
    assert_eq!(shown["tags"], json!({"make": "raw"}));
}

async fn refuse(subject: &Deployment, client: &str) {
    match subject {
        Deployment::Embedded(connector) => {
            use sqlx::Connection as _;
            let path = connector.data_dir().join("cloud-connector.db");
            let url = format!("sqlite://{}", path.display());
            let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
            let trigger = format!(
                "CREATE TRIGGER refuse BEFORE INSERT ON connections WHEN new.client_id = '{client}'
                 BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            );
            sqlx::query(sqlx::AssertSqlSafe(trigger))
                .execute(&mut database)
                .await
                .unwrap();
        }
        #[cfg(feature = "external-services")]
        Deployment::Distributed(both) => {
            let mut database = both.0.connect().await;
            let constraint = format!(
                "ALTER TABLE connections ADD CONSTRAINT refuse CHECK (client_id <> '{client}')"
            );
            sqlx::query(sqlx::AssertSqlSafe(constraint))
                .execute(&mut database)
                .await
                .unwrap();
        }
    }
}
