use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;

use super::*;

/// An HTTP server that sends the same response to every request and stores the requests.
struct FakeTranslator {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

/// Status, body and delay of a response.
type Response = (u16, String, Duration);

impl FakeTranslator {
    async fn start(status: u16, body: String) -> Self {
        Self::start_slow(status, body, Duration::ZERO).await
    }

    async fn start_slow(status: u16, body: String, delay: Duration) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/", listener.local_addr().unwrap());
        let state = (requests.clone(), (status, body, delay));
        let router = Router::new()
            .route("/base/internal/{name}", axum::routing::post(handle_request))
            .with_state(state);
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            requests,
            server,
        }
    }

    fn translator(&self) -> HttpTranslator {
        HttpTranslator::new(&self.url, Duration::from_secs(5)).unwrap()
    }

    /// Returns the last path segment and the body of each received request.
    fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

impl Drop for FakeTranslator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn handle_request(
    State((requests, (status, response, delay))): State<(Arc<Mutex<Vec<String>>>, Response)>,
    UrlPath(endpoint): UrlPath<String>,
    body: String,
) -> (StatusCode, String) {
    requests.lock().push(format!("{endpoint} {body}"));
    tokio::time::sleep(delay).await;
    (StatusCode::from_u16(status).unwrap(), response)
}

fn org(org_id: &str) -> OrgId {
    OrgId::new(org_id).unwrap()
}

#[tokio::test]
async fn found_translations_are_cached_in_both_directions() {
    let fake = FakeTranslator::start(
        200,
        json!({"010101": "10001", "10001": "010101"}).to_string(),
    )
    .await;
    let translator = fake.translator();
    for _ in 0..2 {
        let found = TranslationOutcome::Found(org("10001"));
        assert_eq!(translator.org_of_account("010101").await, found);
        let found = TranslationOutcome::Found("010101".to_owned());
        assert_eq!(translator.account_of_org(&org("10001")).await, found);
    }
    let expected = [r#"orgIds ["010101"]"#, r#"ebsNumbers ["10001"]"#];
    assert_eq!(fake.requests(), expected);
}

#[tokio::test]
async fn missing_null_or_blank_values_are_not_found_and_not_cached() {
    for body in [json!({}), json!({"1": null}), json!({"1": ""})] {
        let fake = FakeTranslator::start(200, body.to_string()).await;
        let translator = fake.translator();
        for _ in 0..2 {
            assert_eq!(
                translator.org_of_account("1").await,
                TranslationOutcome::NotFound
            );
            assert_eq!(
                translator.account_of_org(&org("1")).await,
                TranslationOutcome::NotFound
            );
        }
        assert_eq!(fake.requests().len(), 4, "{body}");
    }
}

#[tokio::test]
async fn unexpected_status_or_body_is_unavailable() {
    let valid_body = json!({"1": "2"}).to_string();
    let too_long_id = "x".repeat(300);
    for (status, body) in [
        (500, valid_body.clone()),
        (404, valid_body.clone()),
        (204, String::new()),
        (302, valid_body),
        (200, "<html>Sign in</html>".to_owned()),
        (200, "[]".to_owned()),
        (200, json!({"1": 2}).to_string()),
        (200, json!({"1": too_long_id}).to_string()),
        (
            200,
            json!({"1": "2", "pad": "x".repeat(MAX_RESPONSE_BYTES)}).to_string(),
        ),
    ] {
        let fake = FakeTranslator::start(status, body).await;
        let translator = fake.translator();
        let unavailable = TranslationOutcome::Unavailable;
        assert_eq!(
            translator.org_of_account("1").await,
            unavailable,
            "{status}"
        );
        let unavailable = TranslationOutcome::Unavailable;
        assert_eq!(
            translator.account_of_org(&org("1")).await,
            unavailable,
            "{status}"
        );
    }
}

#[tokio::test]
async fn timeout_or_refused_connection_is_unavailable() {
    let slow = FakeTranslator::start_slow(200, "{}".to_owned(), Duration::from_mins(1)).await;
    let translator = HttpTranslator::new(&slow.url, Duration::from_millis(50)).unwrap();
    assert_eq!(
        translator.org_of_account("1").await,
        TranslationOutcome::Unavailable
    );
    let unreachable = HttpTranslator::new("http://127.0.0.1:1", Duration::from_secs(5)).unwrap();
    assert_eq!(
        unreachable.org_of_account("1").await,
        TranslationOutcome::Unavailable
    );
}

#[tokio::test]
async fn invalid_account_is_not_found_without_a_request() {
    let fake = FakeTranslator::start(500, String::new()).await;
    let translator = fake.translator();
    for account in ["", "  ", "a\0", &"1".repeat(256)] {
        assert_eq!(
            translator.org_of_account(account).await,
            TranslationOutcome::NotFound
        );
    }
    assert!(fake.requests().is_empty());
}

#[test]
fn invalid_url_error_names_the_setting_and_an_example() {
    for invalid_url in ["translator", "ftp://translator", "http://", "http://a/?b"] {
        let error = HttpTranslator::new(invalid_url, Duration::from_secs(1))
            .err()
            .unwrap();
        let text = error.to_string();
        assert!(text.contains("tenant.translator_url"), "{text}");
        assert!(text.contains("example: "), "{text}");
    }
}

fn read_translator(
    file_content: &str,
    default_tenant: Option<&Tenant>,
) -> Result<StaticTranslator, TranslatorError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounts.json");
    std::fs::write(&path, file_content).unwrap();
    StaticTranslator::read(Some(&path), default_tenant)
}

fn tenant(org_id: &str, account: &str) -> Tenant {
    Tenant {
        org_id: org(org_id),
        account: account.to_owned(),
    }
}

#[tokio::test]
async fn file_translates_both_ways_and_has_precedence_over_the_default_tenant() {
    let file_content = r#"{"2": "20", "1": "10", "3": "10"}"#;
    let translator = read_translator(file_content, Some(&tenant("10000", "111000"))).unwrap();
    for (account, org_id) in [("1", "10"), ("2", "20"), ("3", "10"), ("111000", "10000")] {
        let found = TranslationOutcome::Found(org(org_id));
        assert_eq!(translator.org_of_account(account).await, found);
    }
    for (org_id, account) in [("10", "1"), ("20", "2"), ("10000", "111000")] {
        let found = TranslationOutcome::Found(account.to_owned());
        assert_eq!(translator.account_of_org(&org(org_id)).await, found);
    }
    assert_eq!(
        translator.org_of_account("4").await,
        TranslationOutcome::NotFound
    );
    let conflicting_default = read_translator(file_content, Some(&tenant("10000", "1"))).unwrap();
    assert_eq!(
        conflicting_default.org_of_account("1").await,
        TranslationOutcome::Found(org("10"))
    );
    let outcome = conflicting_default.account_of_org(&org("10000")).await;
    assert_eq!(outcome, TranslationOutcome::NotFound);
}

#[tokio::test]
async fn default_tenant_is_used_without_a_file_if_it_has_an_account() {
    let translator = StaticTranslator::read(None, Some(&tenant("10000", "111000"))).unwrap();
    let found = TranslationOutcome::Found(org("10000"));
    assert_eq!(translator.org_of_account("111000").await, found);
    let translator = StaticTranslator::read(None, Some(&tenant("10000", ""))).unwrap();
    assert_eq!(
        translator.org_of_account("").await,
        TranslationOutcome::NotFound
    );
    let outcome = translator.account_of_org(&org("10000")).await;
    assert_eq!(outcome, TranslationOutcome::NotFound);
}

#[test]
fn malformed_file_error_names_the_setting_and_the_expected_format() {
    for invalid_content in ["[]", r#"{"1": 2}"#, r#"{"": "1"}"#, r#"{"1": " "}"#, "x"] {
        let text = read_translator(invalid_content, None)
            .unwrap_err()
            .to_string();
        assert!(text.contains("tenant.translator_file"), "{text}");
        assert!(text.contains("\"<account>\""), "{text}");
    }
    let missing = StaticTranslator::read(Some(Path::new("/missing/x.json")), None);
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("check the path"), "{text}");
}
