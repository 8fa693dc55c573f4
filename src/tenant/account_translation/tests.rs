use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as At, State};
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;

use super::*;

/// A translator that always answers the same, and notes what it was asked.
struct Fake {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    serving: tokio::task::JoinHandle<()>,
}

type Answer = (u16, String, Duration);

impl Fake {
    async fn start(status: u16, body: String) -> Self {
        Self::slow(status, body, Duration::ZERO).await
    }

    async fn slow(status: u16, body: String, delay: Duration) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/", listener.local_addr().unwrap());
        let state = (asked.clone(), (status, body, delay));
        let router = Router::new()
            .route("/base/internal/{name}", axum::routing::post(answer))
            .with_state(state);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            asked,
            serving,
        }
    }

    fn translator(&self) -> HttpTranslator {
        HttpTranslator::new(&self.url, Duration::from_secs(5)).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    State((asked, (status, body, delay))): State<(Arc<Mutex<Vec<String>>>, Answer)>,
    At(name): At<String>,
    question: String,
) -> (StatusCode, String) {
    asked.lock().push(format!("{name} {question}"));
    tokio::time::sleep(delay).await;
    (StatusCode::from_u16(status).unwrap(), body)
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

#[tokio::test]
async fn an_account_and_an_organisation_are_asked_for_once() {
    let fake = Fake::start(
        200,
        json!({"010101": "10001", "10001": "010101"}).to_string(),
    )
    .await;
    let translator = fake.translator();
    for _ in 0..2 {
        let found = TranslationOutcome::Found(org("10001"));
        assert_eq!(translator.org_of("010101").await, found);
        let found = TranslationOutcome::Found("010101".to_owned());
        assert_eq!(translator.account_of(&org("10001")).await, found);
    }
    let asked = [r#"orgIds ["010101"]"#, r#"ebsNumbers ["10001"]"#];
    assert_eq!(fake.asked(), asked);
}

#[tokio::test]
async fn a_missing_key_null_or_blank_is_no_such_tenant_and_asked_for_again() {
    for body in [json!({}), json!({"1": null}), json!({"1": ""})] {
        let fake = Fake::start(200, body.to_string()).await;
        let translator = fake.translator();
        for _ in 0..2 {
            assert_eq!(translator.org_of("1").await, TranslationOutcome::NotFound);
            assert_eq!(
                translator.account_of(&org("1")).await,
                TranslationOutcome::NotFound
            );
        }
        assert_eq!(fake.asked().len(), 4, "{body}");
    }
}

#[tokio::test]
async fn what_is_not_the_translators_own_word_is_no_answer() {
    let good = json!({"1": "2"}).to_string();
    let long = "x".repeat(300);
    for (status, body) in [
        (500, good.clone()),
        (404, good.clone()),
        (204, String::new()),
        (302, good),
        (200, "<html>Sign in</html>".to_owned()),
        (200, "[]".to_owned()),
        (200, json!({"1": 2}).to_string()),
        (200, json!({"1": long}).to_string()),
        (
            200,
            json!({"1": "2", "pad": "x".repeat(ANSWER_MAX_BYTES)}).to_string(),
        ),
    ] {
        let fake = Fake::start(status, body).await;
        let translator = fake.translator();
        let unavailable = TranslationOutcome::Unavailable;
        assert_eq!(translator.org_of("1").await, unavailable, "{status}");
        let unavailable = TranslationOutcome::Unavailable;
        assert_eq!(
            translator.account_of(&org("1")).await,
            unavailable,
            "{status}"
        );
    }
}

#[tokio::test]
async fn no_answer_in_time_or_from_nobody_is_no_answer() {
    let slow = Fake::slow(200, "{}".to_owned(), Duration::from_mins(1)).await;
    let translator = HttpTranslator::new(&slow.url, Duration::from_millis(50)).unwrap();
    assert_eq!(
        translator.org_of("1").await,
        TranslationOutcome::Unavailable
    );
    let nobody = HttpTranslator::new("http://127.0.0.1:1", Duration::from_secs(5)).unwrap();
    assert_eq!(nobody.org_of("1").await, TranslationOutcome::Unavailable);
}

#[tokio::test]
async fn what_can_be_no_account_is_not_asked_for() {
    let fake = Fake::start(500, String::new()).await;
    let translator = fake.translator();
    for account in ["", "  ", "a\0", &"1".repeat(256)] {
        assert_eq!(
            translator.org_of(account).await,
            TranslationOutcome::NotFound
        );
    }
    assert!(fake.asked().is_empty());
}

#[test]
fn a_wrong_address_is_named_with_its_cure() {
    for bad in ["translator", "ftp://translator", "http://", "http://a/?b"] {
        let error = HttpTranslator::new(bad, Duration::from_secs(1))
            .err()
            .unwrap();
        let text = error.to_string();
        assert!(text.contains("tenant.translator_url"), "{text}");
        assert!(text.contains("write it as"), "{text}");
    }
}

fn read(text: &str, default: Option<&Tenant>) -> Result<StaticTranslator, TranslatorError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounts.json");
    std::fs::write(&path, text).unwrap();
    StaticTranslator::read(Some(&path), default)
}

fn tenant(org_id: &str, account: &str) -> Tenant {
    Tenant {
        org_id: org(org_id),
        account: account.to_owned(),
    }
}

#[tokio::test]
async fn the_file_is_read_both_ways_and_goes_before_the_default() {
    let text = r#"{"2": "20", "1": "10", "3": "10"}"#;
    let translator = read(text, Some(&tenant("10000", "111000"))).unwrap();
    for (account, of) in [("1", "10"), ("2", "20"), ("3", "10"), ("111000", "10000")] {
        let found = TranslationOutcome::Found(org(of));
        assert_eq!(translator.org_of(account).await, found);
    }
    for (of, account) in [("10", "1"), ("20", "2"), ("10000", "111000")] {
        let found = TranslationOutcome::Found(account.to_owned());
        assert_eq!(translator.account_of(&org(of)).await, found);
    }
    assert_eq!(translator.org_of("4").await, TranslationOutcome::NotFound);
    let overruled = read(text, Some(&tenant("10000", "1"))).unwrap();
    assert_eq!(
        overruled.org_of("1").await,
        TranslationOutcome::Found(org("10"))
    );
    let unknown = overruled.account_of(&org("10000")).await;
    assert_eq!(unknown, TranslationOutcome::NotFound);
}

#[tokio::test]
async fn without_a_file_the_default_counts_if_it_has_an_account() {
    let translator = StaticTranslator::read(None, Some(&tenant("10000", "111000"))).unwrap();
    let found = TranslationOutcome::Found(org("10000"));
    assert_eq!(translator.org_of("111000").await, found);
    let translator = StaticTranslator::read(None, Some(&tenant("10000", ""))).unwrap();
    assert_eq!(translator.org_of("").await, TranslationOutcome::NotFound);
    let none = translator.account_of(&org("10000")).await;
    assert_eq!(none, TranslationOutcome::NotFound);
}

#[test]
fn a_malformed_file_names_its_key_and_its_shape() {
    for bad in ["[]", r#"{"1": 2}"#, r#"{"": "1"}"#, r#"{"1": " "}"#, "x"] {
        let text = read(bad, None).unwrap_err().to_string();
        assert!(text.contains("tenant.translator_file"), "{text}");
        assert!(text.contains("\"<account>\""), "{text}");
    }
    let missing = StaticTranslator::read(Some(Path::new("/nowhere/x.json")), None);
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("check the path"), "{text}");
}
