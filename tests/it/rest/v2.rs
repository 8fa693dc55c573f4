//! The second generation: organisations; and who may reach a Satellite server.

use serde_json::json;

use super::{ApiFixture, OK, THEM, US, answered, error, text_of};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(
    a_connection_is_listed_and_its_status_answered_to_the_letter,
    many_clients_are_asked_about_at_once_and_answered_in_order,
    a_satellite_server_of_others_is_reached_where_lookup_is_relaxed,
);

async fn a_connection_is_listed_and_its_status_answered_to_the_letter(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let fields = format!(
        concat!(
            r#""account":"010101","org_id":"10001","client_id":"{}","#,
            r#""canonical_facts":{{"fqdn":"raw.example"}},"dispatchers":{{"echo":{{}}}},"#,
            r#""tags":{{"make":"raw"}}"#
        ),
        world.ours
    );
    let path = format!("/connections/{}/status", world.ours);
    let status = text_of(world.v2(US.0, "GET", &path)).await;
    assert_eq!(
        status,
        (OK, format!(r#"{{"status":"connected",{fields}}}"#))
    );
    let list = text_of(world.v2(US.0, "GET", "/connections")).await;
    let link = "/api/cloud-connector/v2/connections?limit=1000&offset=0";
    let expected = format!(
        r#"{{"meta":{{"count":1}},"links":{{"first":"{link}","last":"{link}"}},"data":[{{{fields}}}]}}"#
    );
    assert_eq!(list, (OK, expected));
    let empty = text_of(world.v2("10003", "GET", "/connections")).await;
    assert_eq!(
        empty,
        (
            OK,
            r#"{"meta":{"count":0},"links":{},"data":[]}"#.to_owned()
        )
    );
}

async fn many_clients_are_asked_about_at_once_and_answered_in_order(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let ask = |body| world.v2(US.0, "POST", "/connections/status").json(&body);
    let names = [
        "nobody",
        &world.theirs,
        &world.ours,
        &world.nobodys,
        "\u{0}",
        &world.ours,
    ];
    let (status, answer) = answered(ask(json!({"client_ids": names}))).await;
    assert_eq!(status, OK);
    let data = answer["data"].as_array().unwrap();
    let one = answered(world.v2(US.0, "GET", &format!("/connections/{}/status", world.ours)));
    let ours = one.await.1;
    let expected = names.map(|name| match name {
        name if name == world.ours => ours.clone(),
        name => json!({"status": "disconnected", "client_id": name}),
    });
    assert_eq!(data.as_slice(), expected);
    let many = |count| json!({"client_ids": vec!["x"; count]});
    assert_eq!(answered(ask(many(1000))).await.0, OK);
    assert_eq!(answered(ask(many(0))).await.1, json!({"data": []}));
    assert_eq!(
        error(ask(many(1001))).await,
        (400, "InvalidValue request".to_owned())
    );
    for bad in [
        json!({}),
        json!({"client_ids": 5}),
        json!({"client_ids": [5]}),
    ] {
        let refused = error(ask(bad)).await;
        assert_eq!(refused, (400, "Unable to process json input".to_owned()));
    }
}

async fn a_satellite_server_of_others_is_reached_where_lookup_is_relaxed(subject: Deployment) {
    let world = ApiFixture::start(subject, &[("api.lookup_mode", "relaxed")]).await;
    let status = |name: &str| world.v2(US.0, "GET", &format!("/connections/{name}/status"));
    let (_, found) = answered(status(&world.satellite)).await;
    assert_eq!(
        (&found["status"], &found["org_id"], &found["account"]),
        (&json!("connected"), &json!(THEM.0), &json!(THEM.1)),
    );
    let node = json!({"account": US.1, "node_id": world.satellite});
    let found = answered(world.v1(US.1, "/connection_status", &node)).await;
    assert_eq!(found.1["status"], "connected");
    let path = format!("/connections/{}/message", world.satellite);
    let sent = world
        .v2(US.0, "POST", &path)
        .json(&json!({"directive": "d"}));
    assert_eq!(answered(sent).await.0, 201);
    let message = json!({"account": US.1, "recipient": world.satellite, "directive": "d"});
    assert_eq!(answered(world.v1(US.1, "/message", &message)).await.0, 201);
    // Nothing else, and nobody else.
    let managed = answered(world.managed("POST", "/connection/status").json(&node)).await;
    assert_eq!(managed.1, json!({"status": "disconnected"}));
    let listed = answered(world.v2(US.0, "GET", "/connections")).await.1;
    assert_eq!(listed["meta"]["count"], 1);
    for other in [&world.theirs, &world.nobodys] {
        assert_eq!(
            answered(status(other)).await.1,
            json!({"status": "disconnected"})
        );
        let path = format!("/connections/{other}/message");
        let sent = world
            .v2(US.0, "POST", &path)
            .json(&json!({"directive": "d"}));
        assert_eq!(error(sent).await.0, 404);
    }
}
