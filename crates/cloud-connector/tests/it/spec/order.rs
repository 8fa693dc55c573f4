//! Tests of section 4 of the protocol specification: message order, duplicate messages and `sent`
//! times.

use serde_json::json;

use super::{connect_client, online_message_with, recorded_message_label, time_from_now};
use test_support::Deployment;
use test_support::each_deployment;
use test_support::mqtt::{control_out_topic, offline_message};

each_deployment!(
    messages_of_a_client_are_applied_in_the_order_in_which_the_broker_received_them,
    an_online_message_with_the_recorded_message_id_is_ignored,
    online_messages_without_message_id_are_not_treated_as_duplicates,
    an_online_message_sent_less_than_ten_minutes_before_the_recorded_message_is_ignored,
    an_online_message_sent_more_than_ten_minutes_before_the_recorded_message_is_applied,
    a_sent_time_in_the_future_does_not_block_later_online_messages,
    a_missing_or_invalid_sent_time_is_replaced_by_the_receive_time,
    an_online_message_after_an_offline_message_is_always_applied,
    a_message_id_with_more_than_255_characters_is_rejected,
);

async fn messages_of_a_client_are_applied_in_the_order_in_which_the_broker_received_them(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "ordered").await;
    let topic = control_out_topic(&client_id);
    for n in 0..20 {
        let online = online_message_with(&format!("m{n}"), &time_from_now(0), &format!("{n}"));
        client
            .send_publish(&topic, online.to_string().as_bytes(), false)
            .await;
        client
            .send_publish(&topic, offline_message().to_string().as_bytes(), false)
            .await;
    }
    let last = online_message_with("last", &time_from_now(0), "last");
    client
        .must_publish_with_messages_in_flight(&topic, &last, 40)
        .await;
    // The test checks the state after all messages. A state before that could be a transient state.
    deployment
        .wait_until_processed(&client_id, &mut client)
        .await;
    let status = deployment.client_status(&client_id).await;
    assert_eq!(status["status"], "connected");
    assert_eq!(recorded_message_label(&status), "last");
}

async fn an_online_message_with_the_recorded_message_id_is_ignored(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "twice").await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(
            &topic,
            &online_message_with("same", &time_from_now(0), "first"),
        )
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("same", &time_from_now(0), "second"),
        )
        .await;
    deployment
        .wait_until_processed(&client_id, &mut client)
        .await;
    let status = deployment.client_status(&client_id).await;
    assert_eq!(recorded_message_label(&status), "first");
}

async fn online_messages_without_message_id_are_not_treated_as_duplicates(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "no-id").await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(&topic, &online_message_with("", &time_from_now(0), "first"))
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("", &time_from_now(0), "second"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "second"
        })
        .await;
    let mut without_message_id = online_message_with("", &time_from_now(0), "third");
    without_message_id
        .as_object_mut()
        .unwrap()
        .remove("message_id");
    client.must_publish(&topic, &without_message_id).await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "third"
        })
        .await;
}

async fn an_online_message_sent_less_than_ten_minutes_before_the_recorded_message_is_ignored(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "stale").await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(
            &topic,
            &online_message_with("new", &time_from_now(0), "new"),
        )
        .await;
    for offset_seconds in [-1, -300, -590] {
        let stale = online_message_with(
            &format!("stale{offset_seconds}"),
            &time_from_now(offset_seconds),
            "stale",
        );
        client.must_publish(&topic, &stale).await;
    }
    deployment
        .wait_until_processed(&client_id, &mut client)
        .await;
    let status = deployment.client_status(&client_id).await;
    assert_eq!(recorded_message_label(&status), "new");
}

async fn an_online_message_sent_more_than_ten_minutes_before_the_recorded_message_is_applied(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "clock-set-back").await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(
            &topic,
            &online_message_with("a", &time_from_now(0), "before"),
        )
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("b", &time_from_now(-900), "after"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "after"
        })
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("c", "0000-01-01T00:00:00Z", "year 0"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "year 0"
        })
        .await;
}

async fn a_sent_time_in_the_future_does_not_block_later_online_messages(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "future").await;
    let topic = control_out_topic(&client_id);
    let future = online_message_with("a", "2099-01-01T00:00:00+02:00", "2099");
    client.must_publish(&topic, &future).await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "2099"
        })
        .await;
    // The client has corrected its clock. The new `sent` time is decades before the recorded `sent`
    // time.
    client
        .must_publish(&topic, &online_message_with("b", &time_from_now(0), "now"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| recorded_message_label(status) == "now")
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("c", "9999-12-30T00:00:00Z", "9999"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "9999"
        })
        .await;
    client
        .must_publish(
            &topic,
            &online_message_with("d", &time_from_now(0), "again"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| {
            recorded_message_label(status) == "again"
        })
        .await;
}

async fn a_missing_or_invalid_sent_time_is_replaced_by_the_receive_time(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "no-clock").await;
    let topic = control_out_topic(&client_id);
    client
        .must_publish(
            &topic,
            &online_message_with("a", &time_from_now(-60), "first"),
        )
        .await;
    for (n, sent) in [json!(null), json!("yesterday"), json!(7), json!([])]
        .into_iter()
        .enumerate()
    {
        let message_label = format!("m{n}");
        let mut online = online_message_with(&message_label, "", &message_label);
        online["sent"] = sent;
        client.must_publish(&topic, &online).await;
        deployment
            .wait_for_status(&client_id, |status| {
                status["tags"]["message_label"] == message_label
            })
            .await;
    }
    // The recorded `sent` time is the receive time of the previous message. The `sent` time of this
    // message is earlier, so this message is stale.
    client
        .must_publish(
            &topic,
            &online_message_with("z", &time_from_now(-60), "stale"),
        )
        .await;
    deployment
        .wait_until_processed(&client_id, &mut client)
        .await;
    assert_eq!(
        recorded_message_label(&deployment.client_status(&client_id).await),
        "m3"
    );
}

async fn an_online_message_after_an_offline_message_is_always_applied(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "again").await;
    let topic = control_out_topic(&client_id);
    for (message_id, offset_seconds, message_label) in [
        ("a", 0, "1"),
        ("a", 0, "2"),
        ("b", -300, "3"),
        ("a", -599, "4"),
    ] {
        client
            .must_publish(
                &topic,
                &online_message_with(message_id, &time_from_now(offset_seconds), message_label),
            )
            .await;
        deployment
            .wait_for_status(&client_id, |status| {
                status["tags"]["message_label"] == message_label
            })
            .await;
        client.must_publish(&topic, &offline_message()).await;
        deployment.wait_until_disconnected(&client_id).await;
    }
}

async fn a_message_id_with_more_than_255_characters_is_rejected(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "long-ids").await;
    let topic = control_out_topic(&client_id);
    let longest_id = "é".repeat(255);
    client
        .must_publish(
            &topic,
            &online_message_with(&longest_id, &time_from_now(0), "255"),
        )
        .await;
    deployment
        .wait_for_status(&client_id, |status| recorded_message_label(status) == "255")
        .await;
    let too_long_id = "é".repeat(256);
    client
        .must_publish(
            &topic,
            &online_message_with(&too_long_id, &time_from_now(0), "256"),
        )
        .await;
    let dead_letters = deployment.wait_for_dead_letters(&client_id, 1).await;
    assert_eq!(dead_letters[0]["reason"], "value_too_long");
    assert_eq!(
        recorded_message_label(&deployment.client_status(&client_id).await),
        "255"
    );
}
