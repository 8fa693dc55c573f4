//! What is asked and does not answer: the caller is told so, and never that a client is not there.

use reqwest::RequestBuilder;
use serde_json::json;

use super::{ApiFixture, US};
use crate::each_deployment;
use crate::support::Deployment;

/// Everything that asks the database, each with its path.
fn all_requests(world: &ApiFixture) -> Vec<(String, RequestBuilder)> {
    let ours = &world.ours;
    let node = json!({"account": US.1, "node_id": ours, "delay": 1});
    let message = json!({"account": US.1, "recipient": ours, "directive": "d"});
    let batch = json!({"client_ids": [ours]});
    let mut requests = vec![
        world.v2(US.0, "GET", "/connections"),
        world.v2(US.0, "GET", "/connections?cursor="),
        world.v2(US.0, "GET", "/connections?tag=a:b&search=c"),
        world.v2(US.0, "GET", &format!("/connections/{ours}/status")),
        world.v2(US.0, "POST", "/connections/status").json(&batch),
        world.v2(US.0, "POST", &format!("/connections/{ours}/check")),
        world.v1(US.1, "/connection_status", &node),
        world.managed("GET", "/connection"),
        world.managed("GET", &format!("/connection/{}", US.1)),
        world.managed("POST", "/connection/status").json(&node),
        world.v1(US.1, "/message", &message),
    ];
    requests.extend(all_sending(world));
    let named = |request: RequestBuilder| {
        let built = request.try_clone().unwrap().build().unwrap();
        (
            format!("{} {}", built.method(), built.url().path()),
            request,
        )
    };
    requests.into_iter().map(named).collect()
}

/// Everything that the broker must take.
fn all_sending(world: &ApiFixture) -> Vec<RequestBuilder> {
    let ours = &world.ours;
    let node = json!({"account": US.1, "node_id": ours, "delay": 1});
    let post = |verb: &str| world.v2(US.0, "POST", &format!("/connections/{ours}/{verb}"));
    let managed = |verb: &str| world.managed("POST", &format!("/connection/{verb}"));
    vec![
        post("message").json(&json!({"directive": "d"})),
        post("ping"),
        post("check?level=2"),
        post("check?level=3&directive=d"),
        post("reconnect").json(&json!({"delay": 1})),
        managed("ping").json(&node),
        managed("reconnect").json(&node),
        // Last: they end it in the books.
        post("disconnect"),
        managed("disconnect").json(&node),
    ]
}

each_deployment!(while_the_translator_is_away_the_first_generation_says_so);

async fn while_the_translator_is_away_the_first_generation_says_so(subject: Deployment) {
    // Nobody listens there.
    let settings = [("tenant.translator_url", "http://127.0.0.1:9")];
    let world = ApiFixture::start(subject, &settings).await;
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

#[cfg(feature = "external-services")]
mod outside {
    use serde_json::{Value, json};

    use super::{ApiFixture, US, all_requests, all_sending};
    use crate::support::connector::send_signal;
    use crate::support::fleet::Fleet;
    use crate::support::{Deployment, eventually};

    fn fleet(world: &ApiFixture) -> &Fleet {
        match &world.subject {
            Deployment::Distributed(both) => &both.0,
            Deployment::Embedded(_) => unreachable!("nothing to stop there"),
        }
    }

    #[tokio::test]
    async fn while_the_database_is_away_everything_says_so_and_comes_back_with_it() {
        let mut world = ApiFixture::made(Deployment::alone, &[]).await;
        let postgres = fleet(&world).postgres.as_ref().unwrap();
        postgres.stop().await;
        for (path, request) in all_requests(&world) {
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 503, "{path}");
            assert!(answer.headers().contains_key("retry-after"), "{path}");
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["title"], "Service unavailable", "{path}");
        }
        assert!(!world.subject.is_ready().await);
        postgres.start_again().await;
        let message = json!({"directive": "d"});
        let path = format!("/connections/{}/message", world.ours);
        eventually("the database to be back", || async {
            let sent = world.v2(US.0, "POST", &path).json(&message);
            let answer = sent.send().await.unwrap();
            (answer.status() == 201).then_some(())
        })
        .await;
        assert_eq!(world.client.message().await.1["directive"], "d");
        eventually("readiness", || async {
            world.subject.is_ready().await.then_some(())
        })
        .await;
    }

    /// Each is told that it was not sent, with the message's id.
    async fn all_are_told(world: &ApiFixture) {
        for request in all_sending(world) {
            let answer = request.send().await.unwrap();
            let path = answer.url().path().to_owned();
            assert_eq!(answer.status(), 503, "{path}");
            assert!(answer.headers().contains_key("retry-after"), "{path}");
            let body: Value = answer.json().await.unwrap();
            let title = match path.rsplit('/').next() {
                Some("ping") => "Ping failed",
                Some("check") => "Check failed",
                _ => "Error passing message to rhc client",
            };
            assert_eq!(body["title"], title, "{path}");
            uuid::Uuid::parse_str(body["id"].as_str().unwrap_or_default()).unwrap();
        }
        let path = format!("/connections/{}/status", world.ours);
        let found = super::super::answered(world.v2(US.0, "GET", &path)).await.1;
        assert_eq!(
            found["status"], "connected",
            "what was not sent ends nothing"
        );
    }

    #[tokio::test]
    async fn while_the_broker_is_away_sending_says_so_and_comes_back_with_it() {
        let world = ApiFixture::made(Deployment::distributed, &[]).await;
        let mosquitto = &fleet(&world).mosquitto;
        mosquitto.stop().await;
        eventually("the loss to be noticed", || async {
            (!world.subject.is_ready().await).then_some(())
        })
        .await;
        all_are_told(&world).await;
        mosquitto.start_again().await;
        let path = format!("/connections/{}/message", world.ours);
        let sent = eventually("the broker to be back", || async {
            let request = world.v2(US.0, "POST", &path);
            let answer = request
                .json(&json!({"directive": "d"}))
                .send()
                .await
                .unwrap();
            (answer.status() == 201).then_some(())
        });
        sent.await;
    }

    #[tokio::test]
    async fn a_broker_that_does_not_acknowledge_is_not_believed_to_have_it() {
        let settings = [("mqtt.publish_timeout", "300ms")];
        let mut world = ApiFixture::made(Deployment::distributed, &settings).await;
        let pid = std::fs::read_to_string(fleet(&world).mosquitto.file("pid")).unwrap();
        let pid: i32 = pid.trim().parse().unwrap();
        send_signal(pid, "STOP");
        let message = json!({"directive": "late"});
        let path = format!("/connections/{}/message", world.ours);
        let (status, body) = {
            let request = world.v2(US.0, "POST", &path).json(&message);
            super::super::answered(request).await
        };
        assert_eq!((status, &body["status"]), (504, &json!(504)), "{body}");
        all_are_told_while_paused(&world).await;
        send_signal(pid, "CONT");
        // It was said that it may still arrive; this one does, with the id that was told.
        let (_, late) = world.client.message().await;
        assert_eq!(
            (&late["directive"], &late["message_id"]),
            (&json!("late"), &body["id"])
        );
        eventually("it acknowledges again", || async {
            let request = world.v2(US.0, "POST", &path).json(&message);
            let (status, _) = super::super::answered(request).await;
            (status == 201).then_some(())
        })
        .await;
    }

    /// Questions need a subscription first, and without it nothing was sent: 503. The rest: 504.
    async fn all_are_told_while_paused(world: &ApiFixture) {
        for request in all_sending(world) {
            let answer = request.send().await.unwrap();
            let url = answer.url().clone();
            let is_question = url.path().contains("/v2/")
                && (url.path().ends_with("ping") || url.path().ends_with("check"));
            let expected = if is_question { 503 } else { 504 };
            assert_eq!(answer.status(), expected, "{url}");
            let body: Value = answer.json().await.unwrap();
            let detail = body["detail"].as_str().unwrap();
            assert_eq!(
                detail.contains("may still arrive"),
                !is_question,
                "{url}: {detail}"
            );
        }
    }
}
