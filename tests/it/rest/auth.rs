//! Authentication: keys, identities, staff.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{ApiFixture, OK, OPERATIONS, SECRET, US, answered, key, plain};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(
    no_credentials_and_wrong_ones_are_401_whatever_the_reason,
    the_identity_header_is_as_if_absent_unless_it_is_trusted,
    an_identity_speaks_for_its_organisation,
    an_identity_that_cannot_be_used_is_400_and_says_why,
    management_takes_staff_and_keys_that_grant_it,
    the_request_id_is_taken_over_or_made_and_returned,
);

const TRUSTED: (&str, &str) = ("api.trust_identity_header", "true");
const FAILED: &str = "Authentication failed";

const TENANT: &[(&str, &str)] = &[
    ("GET", "/v2/connections"),
    ("GET", "/v2/connections/x/status"),
    ("POST", "/v2/connections/x/message"),
    ("POST", "/v1/message"),
    ("POST", "/v1/connection_status"),
];
const MANAGEMENT: &[(&str, &str)] = &[
    ("GET", "/v1/connection"),
    ("GET", "/v1/connection/010101"),
    ("POST", "/v1/connection/status"),
    ("POST", "/v1/connection/ping"),
    ("POST", "/v1/connection/reconnect"),
    ("POST", "/v1/connection/disconnect"),
];

fn identity(identity: &Value) -> String {
    STANDARD.encode(json!({"identity": identity}).to_string())
}

fn staff() -> String {
    identity(&json!({"type": "Associate", "auth_type": "saml-auth",
        "associate": {"email": "a@example.com"}}))
}

fn for_us(request: RequestBuilder) -> RequestBuilder {
    request
        .header("x-rh-cloud-connector-org-id", US.0)
        .header("x-rh-cloud-connector-account", US.1)
}

async fn no_credentials_and_wrong_ones_are_401_whatever_the_reason(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    for (method, path) in TENANT.iter().chain(MANAGEMENT) {
        let request = || world.subject.bare(method, path);
        let is_management = MANAGEMENT.contains(&(*method, *path));
        let (right, other) = if is_management {
            (("operations", OPERATIONS), ("caller", SECRET))
        } else {
            (("caller", SECRET), ("operations", OPERATIONS))
        };
        let mut attempts = vec![
            request(),
            for_us(request()),
            for_us(key(request(), right.0, "wrong")),
            for_us(key(request(), "stranger", right.1)),
            for_us(key(request(), "", "")),
            // A key that is right, and does not open this.
            for_us(key(request(), other.0, other.1)),
            for_us(request().header("x-rh-identity", staff())),
        ];
        if !is_management {
            attempts.push(key(request(), right.0, right.1));
        }
        for attempt in attempts {
            assert_eq!(
                plain(attempt).await,
                (401, FAILED.to_owned()),
                "{method} {path}"
            );
        }
    }
}

async fn the_identity_header_is_as_if_absent_unless_it_is_trusted(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let ours = identity(&json!({"type": "User", "org_id": US.0}));
    let request = world.subject.bare("GET", "/v2/connections");
    let request = request.header("x-rh-identity", &ours);
    assert_eq!(plain(request).await.0, 401);
    // Nor does it go over a key.
    let theirs = identity(&json!({"type": "User", "org_id": "10002"}));
    let request = world.v2(US.0, "GET", "/connections");
    let (status, listed) = answered(request.header("x-rh-identity", theirs)).await;
    assert_eq!((status, &listed["data"][0]["org_id"]), (OK, &json!(US.0)));
}

async fn an_identity_speaks_for_its_organisation(subject: Deployment) {
    let world = ApiFixture::start(subject, &[TRUSTED]).await;
    for ours in [
        json!({"type": "User", "org_id": US.0, "account_number": US.1}),
        json!({"type": "System", "internal": {"org_id": US.0}, "account_number": US.1}),
        json!({"type": "User", "org_id": US.0, "internal": {"org_id": "10002"},
            "account_number": US.1}),
    ] {
        let ours = identity(&ours);
        let request = world.subject.bare("GET", "/v2/connections");
        let (status, listed) = answered(request.header("x-rh-identity", &ours)).await;
        assert_eq!(status, OK);
        assert_eq!(listed["data"][0]["client_id"], world.ours);
        assert_eq!(listed["meta"]["count"], 1);
        let body = json!({"account": US.1, "node_id": world.ours});
        let request = world.subject.bare("POST", "/v1/connection_status");
        let request = request.header("x-rh-identity", &ours).json(&body);
        assert_eq!(answered(request).await.1["status"], "connected");
    }
    // Keys work beside it, and an empty header is none.
    let request = world.v2(US.0, "GET", "/connections");
    assert_eq!(answered(request.header("x-rh-identity", "")).await.0, OK);
}

async fn an_identity_that_cannot_be_used_is_400_and_says_why(subject: Deployment) {
    let world = ApiFixture::start(subject, &[TRUSTED]).await;
    let lacking = "x-rh-identity header has an invalid or missing org_id";
    for (header, why) in [
        ("%".to_owned(), "unable to b64 decode x-rh-identity header"),
        (
            STANDARD.encode("{"),
            "x-rh-identity header does not contain valid JSON: ",
        ),
        (identity(&json!({"type": "User"})), lacking),
        (staff(), lacking),
        (identity(&json!({"type": "X509"})), lacking),
        (
            identity(&json!({"org_id": US.0})),
            "x-rh-identity header is missing type",
        ),
    ] {
        for (method, path) in TENANT {
            let request = world.subject.bare(method, path);
            // The header goes before a key.
            let request = for_us(key(request, "caller", SECRET));
            let (status, text) = plain(request.header("x-rh-identity", &header)).await;
            assert_eq!(status, 400, "{method} {path} {text}");
            let expected = format!("Bad Request: {why}");
            assert!(text.starts_with(&expected), "{method} {path} {text}");
        }
    }
}

async fn management_takes_staff_and_keys_that_grant_it(subject: Deployment) {
    let world = ApiFixture::start(subject, &[TRUSTED]).await;
    let request = |header: String| {
        let request = world.subject.bare("GET", "/v1/connection");
        request.header("x-rh-identity", header)
    };
    assert_eq!(answered(request(staff())).await.0, OK);
    let with_organisation = json!({"type": "Associate", "org_id": US.0, "account_number": US.1});
    assert_eq!(answered(request(identity(&with_organisation))).await.0, OK);
    assert_eq!(answered(world.managed("GET", "/connection")).await.0, OK);
    for other in ["User", "System", "X509", "ServiceAccount"] {
        let other = identity(&json!({"type": other, "org_id": US.0}));
        assert_eq!(plain(request(other)).await, (401, FAILED.to_owned()));
    }
}

async fn the_request_id_is_taken_over_or_made_and_returned(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let id = "x-rh-insights-request-id";
    let given = world.v2(US.0, "GET", "/connections").header(id, "mine-1");
    let answer = given.send().await.unwrap();
    assert_eq!(answer.headers()[id], "mine-1");
    let made = world.subject.bare("GET", "/v2/connections").send();
    assert_eq!(made.await.unwrap().headers()[id].len(), 32);
}
