//! Section 4 of the protocol specification: order, duplicates and time.

use serde_json::json;

use super::{connect_client, from_now, mark, online_with, wait_for_another_client};
use crate::each_deployment;
use crate::support::Deployment;
use crate::support::mqtt::{control_out, offline};

each_deployment!(
    messages_of_a_client_are_applied_in_broker_order,
    an_online_with_the_recorded_message_id_is_ignored,
    onlines_without_message_id_are_not_duplicates,
    an_online_sent_up_to_ten_minutes_before_the_recorded_one_is_stale,
    an_online_sent_over_ten_minutes_before_the_recorded_one_is_applied,
    a_sent_time_in_the_future_does_not_block_later_onlines,
    a_missing_or_invalid_sent_time_is_replaced_by_the_receive_time,
    an_online_after_an_offline_is_always_applied,
    a_message_id_has_at_most_255_characters,
);

async fn messages_of_a_client_are_applied_in_broker_order(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "ordered").await;
    let topic = control_out(&client_id);
    for n in 0..20 {
        let online = online_with(&format!("m{n}"), &from_now(0), &format!("{n}"));
        client
            .send_publish(&topic, online.to_string().as_bytes(), false)
            .await;
        client
            .send_publish(&topic, offline().to_string().as_bytes(), false)
            .await;
    }
    let last = online_with("last", &from_now(0), "last");
    client.must_publish_after_pending(&topic, &last, 40).await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "last")
        .await;
}

async fn an_online_with_the_recorded_message_id_is_ignored(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "twice").await;
    let topic = control_out(&client_id);
    client
        .must_publish(&topic, &online_with("same", &from_now(0), "first"))
        .await;
    client
        .must_publish(&topic, &online_with("same", &from_now(0), "second"))
        .await;
    wait_for_another_client(&deployment).await;
    let status = deployment.wait_until_connected(&client_id).await;
    assert_eq!(mark(&status), "first");
}

async fn onlines_without_message_id_are_not_duplicates(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "no-id").await;
    let topic = control_out(&client_id);
    client
        .must_publish(&topic, &online_with("", &from_now(0), "first"))
        .await;
    client
        .must_publish(&topic, &online_with("", &from_now(0), "second"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "second")
        .await;
    let mut absent = online_with("", &from_now(0), "third");
    absent.as_object_mut().unwrap().remove("message_id");
    client.must_publish(&topic, &absent).await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "third")
        .await;
}

async fn an_online_sent_up_to_ten_minutes_before_the_recorded_one_is_stale(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "stale").await;
    let topic = control_out(&client_id);
    client
        .must_publish(&topic, &online_with("new", &from_now(0), "new"))
        .await;
    for offset_seconds in [-1, -300, -590] {
        let stale = online_with(
            &format!("stale{offset_seconds}"),
            &from_now(offset_seconds),
            "stale",
        );
        client.must_publish(&topic, &stale).await;
    }
    wait_for_another_client(&deployment).await;
    let status = deployment.wait_until_connected(&client_id).await;
    assert_eq!(mark(&status), "new");
}

async fn an_online_sent_over_ten_minutes_before_the_recorded_one_is_applied(
    deployment: Deployment,
) {
    let (client_id, mut client) = connect_client(&deployment, "clock-set-back").await;
    let topic = control_out(&client_id);
    client
        .must_publish(&topic, &online_with("a", &from_now(0), "before"))
        .await;
    client
        .must_publish(&topic, &online_with("b", &from_now(-900), "after"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "after")
        .await;
    client
        .must_publish(&topic, &online_with("c", "0000-01-01T00:00:00Z", "year 0"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "year 0")
        .await;
}

async fn a_sent_time_in_the_future_does_not_block_later_onlines(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "future").await;
    let topic = control_out(&client_id);
    let future = online_with("a", "2099-01-01T00:00:00+02:00", "2099");
    client.must_publish(&topic, &future).await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "2099")
        .await;
    // The client's clock was corrected, so `sent` is decades before the recorded one.
    client
        .must_publish(&topic, &online_with("b", &from_now(0), "now"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "now")
        .await;
    client
        .must_publish(&topic, &online_with("c", "9999-12-30T00:00:00Z", "9999"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "9999")
        .await;
    client
        .must_publish(&topic, &online_with("d", &from_now(0), "again"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "again")
        .await;
}

async fn a_missing_or_invalid_sent_time_is_replaced_by_the_receive_time(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "no-clock").await;
    let topic = control_out(&client_id);
    client
        .must_publish(&topic, &online_with("a", &from_now(-60), "first"))
        .await;
    for (n, sent) in [json!(null), json!("yesterday"), json!(7), json!([])]
        .into_iter()
        .enumerate()
    {
        let mark = format!("m{n}");
        let mut online = online_with(&mark, "", &mark);
        online["sent"] = sent;
        client.must_publish(&topic, &online).await;
        deployment
            .wait_for_status(&client_id, |status| status["tags"]["mark"] == mark)
            .await;
    }
    // The recorded online has the receive time, which is later than this `sent` time.
    client
        .must_publish(&topic, &online_with("z", &from_now(-60), "stale"))
        .await;
    wait_for_another_client(&deployment).await;
    assert_eq!(mark(&deployment.status(&client_id).await), "m3");
}

async fn an_online_after_an_offline_is_always_applied(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "again").await;
    let topic = control_out(&client_id);
    for (id, offset_seconds, mark) in [
        ("a", 0, "1"),
        ("a", 0, "2"),
        ("b", -300, "3"),
        ("a", -599, "4"),
    ] {
        client
            .must_publish(&topic, &online_with(id, &from_now(offset_seconds), mark))
            .await;
        deployment
            .wait_for_status(&client_id, |status| status["tags"]["mark"] == mark)
            .await;
        client.must_publish(&topic, &offline()).await;
        deployment.wait_until_disconnected(&client_id).await;
    }
}

async fn a_message_id_has_at_most_255_characters(deployment: Deployment) {
    let (client_id, mut client) = connect_client(&deployment, "long-ids").await;
    let topic = control_out(&client_id);
    let longest = "é".repeat(255);
    client
        .must_publish(&topic, &online_with(&longest, &from_now(0), "255"))
        .await;
    deployment
        .wait_for_status(&client_id, |status| mark(status) == "255")
        .await;
    let too_long = "é".repeat(256);
    client
        .must_publish(&topic, &online_with(&too_long, &from_now(0), "256"))
        .await;
    let dead_letters = deployment.wait_for_dead_letters(&client_id, 1).await;
    assert_eq!(dead_letters[0]["reason"], "value_too_long");
    assert_eq!(mark(&deployment.status(&client_id).await), "255");
}
