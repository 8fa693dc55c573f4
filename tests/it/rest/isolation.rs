//! Nothing of one organisation is readable or reachable for another; what is nobody's is for nobody.

use serde_json::{Value, json};

use super::{ApiFixture, OK, THEM, US, answered, error};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(nothing_of_others_is_readable_or_reachable_in_any_way);

async fn nothing_of_others_is_readable_or_reachable_in_any_way(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let gone = json!({"status": "disconnected"});
    for hidden in [&world.theirs, &world.satellite, &world.nobodys] {
        for name in spellings(hidden) {
            let path = format!("/connections/{name}/status");
            let found = answered(world.v2(US.0, "GET", &path)).await;
            assert_eq!(found, (OK, gone.clone()), "{name}");
            let path = format!("/connections/{name}/message");
            let sent = world
                .v2(US.0, "POST", &path)
                .json(&json!({"directive": "d"}));
            assert_eq!(error(sent).await.0, 404, "{name}");
            for verb in ["ping", "reconnect", "disconnect"] {
                let path = format!("/connections/{name}/{verb}");
                let told = world.v2(US.0, "POST", &path).json(&json!({"delay": 1}));
                assert_eq!(error(told).await.0, 404, "{verb} {name}");
            }
            for level in 1..=3 {
                let path = format!("/connections/{name}/check?level={level}&directive=d");
                let found = answered(world.v2(US.0, "POST", &path)).await;
                let unknown = json!({"level": level, "status": "disconnected"});
                assert_eq!(found, (OK, unknown), "{name}");
            }
        }
        let batch = json!({"client_ids": [hidden]});
        let found = answered(world.v2(US.0, "POST", "/connections/status").json(&batch)).await;
        let unknown = json!({"status": "disconnected", "client_id": hidden});
        assert_eq!(found.1, json!({"data": [unknown]}));
        for query in [
            format!("search={hidden}"),
            format!("search={hidden}&cursor="),
            "cursor=&limit=10000".to_owned(),
            "dispatcher=echo&limit=10000".to_owned(),
            "dispatcher=foreman_rh_cloud&cursor=".to_owned(),
            "fqdn=raw.example&tag=make:raw".to_owned(),
        ] {
            let path = format!("/connections?{query}");
            let (_, list) = answered(world.v2(US.0, "GET", &path)).await;
            let listed = list["data"].to_string();
            assert!(!listed.contains(hidden.as_str()), "{query}: {list}");
        }
        let node = json!({"account": US.1, "node_id": hidden});
        let found = answered(world.v1(US.1, "/connection_status", &node)).await;
        assert_eq!(found.1, gone);
        let message = json!({"account": US.1, "recipient": hidden, "directive": "d"});
        assert_eq!(error(world.v1(US.1, "/message", &message)).await.0, 404);
    }
    let (_, listed) = answered(world.v2(US.0, "GET", "/connections")).await;
    assert_eq!(listed["meta"]["count"], 1);
    assert_eq!(listed["data"][0]["client_id"], world.ours);
    // What is nobody's is not even shown to those who manage everybody.
    for (org, account) in [US, THEM, ("", "")] {
        let node = json!({"account": account, "node_id": world.nobodys, "delay": 1});
        for path in ["status", "ping", "reconnect", "disconnect"] {
            let path = format!("/connection/{path}");
            let (_, found) = answered(world.managed("POST", &path).json(&node)).await;
            let is_hidden = found["status"] == "disconnected" || found["status"] == 400;
            assert!(is_hidden, "{org} {path} {found}");
        }
    }
    let (_, all) = answered(world.managed("GET", "/connection")).await;
    assert!(!all.to_string().contains(&world.nobodys), "{all}");
    let no_organisation: Value = json!([]);
    for org in [" ", "''", "%00"] {
        let (status, body) = answered_or_refused(world.v2(org, "GET", "/connections")).await;
        assert!(
            status == 401 || body["data"] == no_organisation,
            "{org:?} {body}"
        );
    }
}

async fn answered_or_refused(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// Ways of writing a name in a path.
fn spellings(name: &str) -> Vec<String> {
    let escaped: Vec<String> = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    vec![
        name.to_owned(),
        escaped.concat(),
        name.to_uppercase(),
        format!("{name}%20"),
        format!("{name}%00"),
        format!("x%2F..%2F{name}"),
    ]
}
