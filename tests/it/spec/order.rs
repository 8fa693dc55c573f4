//! Section 4: order, duplicates and time.

use serde_json::json;

use super::{client, from_now, mark, said, settle};
use crate::each_deployment;
use crate::support::Deployment;
use crate::support::mqtt::{control_out, offline};

each_deployment!(
    a_clients_messages_take_effect_in_the_order_of_the_broker,
    an_online_with_the_recorded_id_has_no_effect,
    an_empty_or_absent_id_never_makes_a_duplicate,
    an_online_sent_up_to_ten_minutes_before_the_recorded_one_is_old,
    further_back_the_clock_was_set_and_the_order_decides,
    a_clock_in_the_future_locks_nobody_out,
    a_missing_or_unreadable_clock_is_the_time_of_receipt,
    an_online_after_an_offline_always_registers,
    a_message_id_is_accepted_up_to_255_characters,
);

async fn a_clients_messages_take_effect_in_the_order_of_the_broker(subject: Deployment) {
    let (me, mut client) = client(&subject, "ordered").await;
    let topic = control_out(&me);
    for n in 0..20 {
        let online = said(&format!("m{n}"), &from_now(0), &format!("{n}"));
        client
            .publish_only(&topic, online.to_string().as_bytes(), false)
            .await;
        client
            .publish_only(&topic, offline().to_string().as_bytes(), false)
            .await;
    }
    let last = said("last", &from_now(0), "last");
    client.must_publish_after(&topic, &last, 40).await;
    subject
        .wait_until(&me, |status| mark(status) == "last")
        .await;
}

async fn an_online_with_the_recorded_id_has_no_effect(subject: Deployment) {
    let (me, mut client) = client(&subject, "twice").await;
    let topic = control_out(&me);
    client
        .must_publish(&topic, &said("same", &from_now(0), "first"))
        .await;
    client
        .must_publish(&topic, &said("same", &from_now(0), "second"))
        .await;
    let (other, mut marker) = super::client(&subject, "marker").await;
    settle(&subject, &other, &mut marker, "x").await;
    let status = subject.wait_for(&me, true).await;
    assert_eq!(mark(&status), "first");
}

async fn an_empty_or_absent_id_never_makes_a_duplicate(subject: Deployment) {
    let (me, mut client) = client(&subject, "nameless").await;
    let topic = control_out(&me);
    client
        .must_publish(&topic, &said("", &from_now(0), "first"))
        .await;
    client
        .must_publish(&topic, &said("", &from_now(0), "second"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "second")
        .await;
    let mut absent = said("", &from_now(0), "third");
    absent.as_object_mut().unwrap().remove("message_id");
    client.must_publish(&topic, &absent).await;
    subject
        .wait_until(&me, |status| mark(status) == "third")
        .await;
}

async fn an_online_sent_up_to_ten_minutes_before_the_recorded_one_is_old(subject: Deployment) {
    let (me, mut client) = client(&subject, "old").await;
    let topic = control_out(&me);
    client
        .must_publish(&topic, &said("new", &from_now(0), "new"))
        .await;
    for back in [-1, -300, -590] {
        let old = said(&format!("old{back}"), &from_now(back), "old");
        client.must_publish(&topic, &old).await;
    }
    let (other, mut marker) = super::client(&subject, "marker").await;
    settle(&subject, &other, &mut marker, "x").await;
    let status = subject.wait_for(&me, true).await;
    assert_eq!(mark(&status), "new");
}

async fn further_back_the_clock_was_set_and_the_order_decides(subject: Deployment) {
    let (me, mut client) = client(&subject, "set-back").await;
    let topic = control_out(&me);
    client
        .must_publish(&topic, &said("a", &from_now(0), "before"))
        .await;
    client
        .must_publish(&topic, &said("b", &from_now(-900), "after"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "after")
        .await;
    client
        .must_publish(&topic, &said("c", "0000-01-01T00:00:00Z", "year 0"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "year 0")
        .await;
}

async fn a_clock_in_the_future_locks_nobody_out(subject: Deployment) {
    let (me, mut client) = client(&subject, "future").await;
    let topic = control_out(&me);
    let future = said("a", "2099-01-01T00:00:00+02:00", "2099");
    client.must_publish(&topic, &future).await;
    subject
        .wait_until(&me, |status| mark(status) == "2099")
        .await;
    // Its clock is mended: by its own word this is 70 years before.
    client
        .must_publish(&topic, &said("b", &from_now(0), "now"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "now")
        .await;
    client
        .must_publish(&topic, &said("c", "9999-12-30T00:00:00Z", "9999"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "9999")
        .await;
    client
        .must_publish(&topic, &said("d", &from_now(0), "again"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "again")
        .await;
}

async fn a_missing_or_unreadable_clock_is_the_time_of_receipt(subject: Deployment) {
    let (me, mut client) = client(&subject, "clockless").await;
    let topic = control_out(&me);
    client
        .must_publish(&topic, &said("a", &from_now(-60), "first"))
        .await;
    for (n, sent) in [json!(null), json!("yesterday"), json!(7), json!([])]
        .into_iter()
        .enumerate()
    {
        let mark = format!("m{n}");
        let mut online = said(&mark, "", &mark);
        online["sent"] = sent;
        client.must_publish(&topic, &online).await;
        subject
            .wait_until(&me, |status| status["tags"]["mark"] == mark)
            .await;
    }
    // Recorded as received just now, so this is old.
    client
        .must_publish(&topic, &said("z", &from_now(-60), "old"))
        .await;
    let (other, mut marker) = super::client(&subject, "marker").await;
    settle(&subject, &other, &mut marker, "x").await;
    assert_eq!(mark(&subject.status(&me).await), "m3");
}

async fn an_online_after_an_offline_always_registers(subject: Deployment) {
    let (me, mut client) = client(&subject, "again").await;
    let topic = control_out(&me);
    for (id, back, mark) in [
        ("a", 0, "1"),
        ("a", 0, "2"),
        ("b", -300, "3"),
        ("a", -599, "4"),
    ] {
        client
            .must_publish(&topic, &said(id, &from_now(back), mark))
            .await;
        subject
            .wait_until(&me, |status| status["tags"]["mark"] == mark)
            .await;
        client.must_publish(&topic, &offline()).await;
        subject.wait_for(&me, false).await;
    }
}

async fn a_message_id_is_accepted_up_to_255_characters(subject: Deployment) {
    let (me, mut client) = client(&subject, "long-ids").await;
    let topic = control_out(&me);
    let longest = "é".repeat(255);
    client
        .must_publish(&topic, &said(&longest, &from_now(0), "255"))
        .await;
    subject
        .wait_until(&me, |status| mark(status) == "255")
        .await;
    let over = "é".repeat(256);
    client
        .must_publish(&topic, &said(&over, &from_now(0), "256"))
        .await;
    let letters = subject.wait_for_letters(&me, 1).await;
    assert_eq!(letters[0]["reason"], "too_long");
    assert_eq!(mark(&subject.status(&me).await), "255");
}
