//! What is asked and does not answer: the caller is told so, and never that a client is not there.

use serde_json::json;

use super::{US, World};
use crate::on_both_set_ups;
use crate::support::Subject;

on_both_set_ups!(while_the_translator_is_away_the_first_generation_says_so);

async fn while_the_translator_is_away_the_first_generation_says_so(subject: Subject) {
    // Nobody listens there.
    let settings = [("tenant.translator_url", "http://127.0.0.1:9")];
    let world = World::start(subject, &settings).await;
    let node = json!({"account": US.1, "node_id": world.ours, "delay": 1});
    let message = json!({"account": US.1, "recipient": world.ours, "directive": "d"});
    let managed = |path: &str| {
        world
            .managed("POST", &format!("/connection/{path}"))
            .json(&node)
    };
    for request in [
        world.v1(US.1, "/message", &message),
        world.v1(US.1, "/connection_status", &node),
        world.managed("GET", "/connection/010101"),
        managed("status"),
        managed("ping"),
        managed("reconnect"),
        managed("disconnect"),
    ] {
        let answer = request.send().await.unwrap();
        let path = answer.url().path().to_owned();
        assert_eq!(answer.status(), 503, "{path}");
        assert!(answer.headers().contains_key("retry-after"), "{path}");
        let body: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(body["title"], "Service unavailable", "{path}");
    }
    // What needs no translation goes on.
    let list = world.managed("GET", "/connection").send().await.unwrap();
    assert_eq!(list.status(), 200);
}
