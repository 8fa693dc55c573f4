//! Whether a client answers, and what it is told to do with its connection.

use serde_json::{Value, json};

use super::{ApiFixture, OK, US, answered, error};
use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, data_out};
use crate::support::{Deployment, eventually, unique};

each_deployment!(
    a_ping_waits_for_its_pong_and_tells_how_long_it_took,
    a_client_that_does_not_answer_is_told_from_one_that_is_not_there,
    a_check_goes_as_far_as_its_level,
    a_handshake_client_is_checked_through_its_application,
    a_reconnect_reaches_the_client_and_leaves_it_in_the_books,
    a_disconnect_reaches_the_client_and_ends_it_in_the_books,
);

fn path(client: &str, verb: &str) -> String {
    format!("/connections/{client}/{verb}")
}

fn pong(to: &Value) -> Value {
    json!({"type": "event", "message_id": "p", "response_to": to, "version": 1,
        "sent": "2026-01-02T15:04:05Z", "content": "pong"})
}

async fn a_ping_waits_for_its_pong_and_tells_how_long_it_took(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let ours = world.ours.clone();
    // Two at once: each has its own.
    let (one, two) = (
        path(&ours, "ping?timeout=25"),
        path(&ours, "ping?timeout=20"),
    );
    let pings = [one, two].map(|path| tokio::spawn(answered(world.v2(US.0, "POST", &path))));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (topic, ping) = world.client.message().await;
        assert_eq!(topic, format!("redhat/insights/{ours}/control/in"));
        assert_eq!(ping["content"]["command"], "ping");
        ids.push(ping["message_id"].clone());
    }
    world
        .client
        .must_publish(&control_out(&ours), &pong(&json!("of something else")))
        .await;
    for id in ids.iter().rev() {
        world
            .client
            .must_publish(&control_out(&ours), &pong(id))
            .await;
    }
    for ping in pings {
        let (status, body) = ping.await.unwrap();
        assert_eq!(
            (status, &body["status"]),
            (OK, &json!("connected")),
            "{body}"
        );
        assert!(ids.contains(&body["id"]), "{body}");
        let took = body["round_trip_ms"].as_f64().unwrap();
        assert!(took > 0.0 && took < 25_000.0, "{body}");
    }
    for bad in ["0", "26", "-1", "x", "1.5"] {
        let refused = error(world.v2(US.0, "POST", &path(&ours, &format!("ping?timeout={bad}"))));
        assert_eq!(
            refused.await,
            (400, "InvalidValue request".to_owned()),
            "{bad}"
        );
    }
}

async fn a_client_that_does_not_answer_is_told_from_one_that_is_not_there(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let request = world.v2(US.0, "POST", &path(&world.ours, "ping?timeout=1"));
    let asked = tokio::spawn(answered(request));
    let (_, ping) = world.client.message().await;
    let (status, body) = asked.await.unwrap();
    assert_eq!(
        (status, &body["title"]),
        (504, &json!("Ping failed")),
        "{body}"
    );
    assert_eq!(body["id"], ping["message_id"]);
    for nobody in ["nobody", &world.theirs, &world.satellite, &world.nobodys] {
        let refused = error(world.v2(US.0, "POST", &path(nobody, "ping"))).await;
        assert_eq!(refused, (404, "No connection to the rhc client".to_owned()));
    }
}

async fn a_check_goes_as_far_as_its_level(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let ours = world.ours.clone();
    let check =
        |client: &str, query: &str| world.v2(US.0, "POST", &path(client, &format!("check{query}")));
    // The books.
    for query in ["", "?level=", "?level=1"] {
        let connected = json!({"level": 1, "status": "connected"});
        assert_eq!(answered(check(&ours, query)).await, (OK, connected));
    }
    for client in ["nobody", &world.theirs, &world.nobodys] {
        for (level, query) in [
            (1, "?level=1"),
            (2, "?level=2"),
            (3, "?level=3&directive=x"),
        ] {
            let gone = json!({"level": level, "status": "disconnected"});
            assert_eq!(answered(check(client, query)).await, (OK, gone));
        }
    }
    // A client that stays silent.
    let silent = answered(check(&ours, "?level=2&timeout=1")).await.1;
    assert_eq!(
        (&silent["status"], &silent["answered"]),
        (&json!("connected"), &json!(false))
    );
    // The dialect's ping, and a message to an application.
    let (two, three) = (
        check(&ours, "?level=2&timeout=20"),
        check(&ours, "?level=3&directive=rhc:ping&timeout=20"),
    );
    world.client.message().await;
    let two = tokio::spawn(answered(two));
    let (_, ping) = world.client.message().await;
    world
        .client
        .must_publish(&control_out(&ours), &pong(&ping["message_id"]))
        .await;
    let two = two.await.unwrap().1;
    assert_eq!(
        (&two["answered"], &two["id"]),
        (&json!(true), &ping["message_id"])
    );
    assert!(two["round_trip_ms"].is_number(), "{two}");
    let three = tokio::spawn(answered(three));
    let (topic, message) = world.client.message().await;
    assert_eq!(topic, format!("redhat/insights/{ours}/data/in"));
    assert_eq!(message["directive"], "rhc:ping");
    let answer = json!({"type": "data", "message_id": "d", "response_to": message["message_id"],
        "version": 1, "sent": "2026-01-02T15:04:05Z", "directive": "rhc:ping", "metadata": {},
        "content": "here"});
    world.client.must_publish(&data_out(&ours), &answer).await;
    let three = three.await.unwrap().1;
    assert_eq!(
        (&three["level"], &three["answered"]),
        (&json!(3), &json!(true))
    );
    for bad in [
        "?level=0",
        "?level=4",
        "?level=x",
        "?level=3",
        "?level=3&directive=%20",
    ] {
        let refused = error(world.v2(US.0, "POST", &path(&ours, &format!("check{bad}")))).await;
        assert_eq!(refused, (400, "InvalidValue request".to_owned()), "{bad}");
    }
}

async fn a_handshake_client_is_checked_through_its_application(subject: Deployment) {
    let world = ApiFixture::start(subject, &[("tenant.default_org_id", US.0)]).await;
    let name = unique("proxy");
    let mut client = RawClient::connect(&world.subject.mqtt(), &Connect::new(&name)).await;
    client
        .subscribe(&format!("redhat/insights/out/{name}"))
        .await;
    let handshake = json!({"type": "host-handshake", "message_id": "h1", "version": 1,
        "sent": "2026-01-02T15:04:05Z", "payload": {"canonical_facts": {"fqdn": "h.example"}}});
    let topic = format!("redhat/insights/in/{name}");
    client
        .publish_retained(&topic, handshake.to_string().as_bytes())
        .await;
    eventually("its row", || world.subject.row(&name)).await;
    let refused = error(world.v2(US.0, "POST", &path(&name, "ping"))).await;
    assert_eq!(refused, (409, "Ping failed".to_owned()));
    let check = path(&name, "check?level=3&directive=catalog:ping&timeout=20");
    let check = tokio::spawn(answered(world.v2(US.0, "POST", &check)));
    let (_, message) = client.message().await;
    let answer = json!({"type": "message-error", "message_id": "e", "version": 1,
        "sent": "2026-01-02T15:04:05Z", "in_response_to": message["message_id"],
        "payload": {"details": "no such directive"}});
    client.must_publish(&topic, &answer).await;
    let (status, checked) = check.await.unwrap();
    assert_eq!(
        (status, &checked["answered"]),
        (OK, &json!(true)),
        "{checked}"
    );
    assert_eq!(checked["refusal"], "no such directive");
    client.publish_retained(&topic, b"").await;
}

async fn a_reconnect_reaches_the_client_and_leaves_it_in_the_books(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let ask = |client: &str, body: Value| {
        world
            .v2(US.0, "POST", &path(client, "reconnect"))
            .json(&body)
    };
    let (status, told) = answered(ask(&world.ours, json!({"delay": 0.0, "message": "so"}))).await;
    assert_eq!(status, OK);
    let refusals = [
        (
            json!({"delay": -1}),
            (400, "Delay field cannot be negative"),
        ),
        (json!({}), (400, "Unable to process json input")),
        (json!({"delay": "5"}), (400, "Unable to process json input")),
        (json!({"delay": 1.5}), (400, "Unable to process json input")),
    ];
    for (body, (status, title)) in refusals {
        assert_eq!(
            error(ask(&world.ours, body)).await,
            (status, title.to_owned())
        );
    }
    for nobody in ["nobody", &world.theirs, &world.satellite, &world.nobodys] {
        assert_eq!(error(ask(nobody, json!({"delay": 1}))).await.0, 404);
    }
    let (_, command) = world.client.message().await;
    assert_eq!(told, json!({"id": command["message_id"]}));
    let content = json!({"command": "reconnect", "arguments": {"delay": "0"}, "message": "so"});
    assert_eq!(command["content"], content);
    assert!(world.subject.row(&world.ours).await.is_some());
}

async fn a_disconnect_reaches_the_client_and_ends_it_in_the_books(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let ours = world.ours.clone();
    for nobody in ["nobody", &world.theirs, &world.satellite, &world.nobodys] {
        let request = world.v2(US.0, "POST", &path(nobody, "disconnect"));
        assert_eq!(error(request).await.0, 404);
    }
    let bad = world
        .v2(US.0, "POST", &path(&ours, "disconnect"))
        .body("[]");
    assert_eq!(error(bad).await.0, 400);
    let (status, told) = answered(world.v2(US.0, "POST", &path(&ours, "disconnect"))).await;
    assert_eq!(status, OK);
    let (_, command) = world.client.message().await;
    assert_eq!(told, json!({"id": command["message_id"]}));
    let content = json!({"command": "disconnect", "arguments": null, "message": ""});
    assert_eq!(command["content"], content);
    let status = answered(world.v2(US.0, "GET", &path(&ours, "status")))
        .await
        .1;
    assert_eq!(status, json!({"status": "disconnected"}));
    // It did not leave after all.
    world.client.show_life(&data_out(&ours)).await;
    eventually("it to be back", || world.subject.row(&ours)).await;
    // The first generation does the same.
    let node = json!({"account": US.1, "node_id": ours, "message": "bye"});
    let told = world.managed("POST", "/connection/disconnect").json(&node);
    assert_eq!(answered(told).await, (OK, json!({})));
    assert!(world.subject.row(&ours).await.is_none());
}

#[cfg(feature = "external-services")]
#[tokio::test]
async fn a_pong_reaches_the_process_that_asked_whichever_it_is() {
    use crate::support::fleet::ORG;
    let subject = Deployment::distributed(&[("tenant.default_org_id", ORG)]).await;
    let Deployment::Distributed(both) = &subject else {
        unreachable!("it was just made");
    };
    let others = [both.0.start(&["api"]).await, both.0.start(&["api"]).await];
    for other in &others {
        eventually("readiness", || async {
            let ready = other.bare("GET", "/readiness").send().await.unwrap();
            (ready.status() == 200).then_some(())
        })
        .await;
    }
    let name = unique("asked");
    let mut client = super::arrive(&subject, &name, "echo").await;
    let asked = |process: &crate::support::fleet::Process| {
        let request = process.request("POST", &format!("/v2{}", path(&name, "ping?timeout=20")));
        tokio::spawn(answered(request))
    };
    let pings = [asked(&both.1), asked(&others[0]), asked(&others[1])];
    let mut ids = Vec::new();
    for _ in &pings {
        ids.push(client.message().await.1["message_id"].clone());
    }
    for id in ids.iter().rev() {
        client.must_publish(&control_out(&name), &pong(id)).await;
    }
    let mut told = Vec::new();
    for ping in pings {
        let (status, body) = ping.await.unwrap();
        assert_eq!(status, OK, "{body}");
        told.push(body["id"].clone());
    }
    ids.sort_by_key(Value::to_string);
    told.sort_by_key(Value::to_string);
    assert_eq!(ids, told);
}
