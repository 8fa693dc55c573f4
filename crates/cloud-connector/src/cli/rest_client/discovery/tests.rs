use super::*;

const PROFILES: &str = "[profiles.default]\nurl = \"https://default.example\"\nkey = \"d\"\n\
                        [profiles.stage]\nurl = \"https://stage.example/base/\"\nkey = \"s\"\n\
                        key_name = \"support\"\norg_id = \"7\"\n";

/// Files of a user: profiles and a key.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let home = Self { folder };
        std::fs::write(home.path("config.toml"), PROFILES).unwrap();
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(home.path("config.toml"), owner_only).unwrap();
        std::fs::write(home.path("key"), "file-key\n").unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn environment(&self) -> CliEnvironment {
        CliEnvironment {
            profile_file: Some(self.path("config.toml")),
            ..CliEnvironment::default()
        }
    }
}

/// Returns the URL, the key name and the key.
fn find(options: &RestOptions, environment: &CliEnvironment) -> (String, String, String) {
    let target = find_target(options, environment).unwrap();
    let key = target.key.expose_secret().to_owned();
    (target.url, target.key_name, key)
}

fn owned(url: &str, key_name: &str, key: &str) -> (String, String, String) {
    (url.to_owned(), key_name.to_owned(), key.to_owned())
}

#[test]
fn an_option_has_priority_over_the_environment_and_the_environment_over_the_default_profile() {
    let home = Home::new();
    let mut environment = home.environment();
    let mut options = RestOptions::default();
    let default = owned("https://default.example/api/cloud-connector", "local", "d");
    assert_eq!(find(&options, &environment), default);

    environment.profile = Some("stage".to_owned());
    let stage = owned("https://stage.example/base", "support", "s");
    assert_eq!(find(&options, &environment), stage);
    let target = find_target(&options, &environment).unwrap();
    assert_eq!(target.org_id.as_deref(), Some("7"));

    environment.url = Some("http://environment:8080".to_owned());
    environment.key = Some(SecretString::from("e"));
    let expected = owned("http://environment:8080/api/cloud-connector", "local", "e");
    assert_eq!(find(&options, &environment), expected);

    options.profile = Some("stage".to_owned());
    assert_eq!(find(&options, &environment), stage);

    options = RestOptions {
        url: Some("http://option/v/".to_owned()),
        key_file: Some(home.path("key")),
        key_name: Some("me".to_owned()),
        ..RestOptions::default()
    };
    let expected = owned("http://option/v", "me", "file-key");
    assert_eq!(find(&options, &environment), expected);
}

#[test]
fn the_key_of_a_profile_is_not_sent_to_another_address() {
    let home = Home::new();
    let options = RestOptions {
        url: Some("http://other".to_owned()),
        ..RestOptions::default()
    };
    let error = find_target(&options, &home.environment()).unwrap_err();
    assert!(matches!(error, RestError::Usage(_)));
    assert!(error.to_string().contains("--key-file"), "{error}");
}

#[test]
fn a_connector_on_this_machine_is_found_in_its_data_folder() {
    let home = Home::new();
    let dir = home.path("data");
    let options = RestOptions {
        data_dir: Some(dir.clone()),
        ..RestOptions::default()
    };
    let environment = home.environment();
    let error = find_target(&options, &environment).unwrap_err();
    assert!(matches!(error, RestError::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");

    std::fs::create_dir(&dir).unwrap();
    let process_id = std::process::id();
    let address = serde_json::json!({"process_id": process_id, "url": "http://a/b", "org_id": "5"});
    std::fs::write(dir.join("address.json"), address.to_string()).unwrap();
    std::fs::write(dir.join("lock"), process_id.to_string()).unwrap();
    let error = find_target(&options, &environment).unwrap_err();
    assert!(matches!(error, RestError::Usage(_)), "{error}");
    assert!(error.to_string().contains("api.local_key"), "{error}");

    std::fs::write(dir.join("local.key"), "local-key\n").unwrap();
    let expected = owned("http://a/b", "local", "local-key");
    assert_eq!(find(&options, &environment), expected);
    let target = find_target(&options, &environment).unwrap();
    assert_eq!(target.org_id.as_deref(), Some("5"));
    assert!(target.is_local);
}

#[test]
fn an_invalid_url_or_key_is_a_usage_error() {
    let home = Home::new();
    std::fs::write(home.path("empty"), "\n").unwrap();
    std::fs::write(home.path("two-lines"), "a\nb\n").unwrap();
    for (url, key_file, expected) in [
        ("localhost:8080", "key", "http://"),
        ("http://a?b", "key", "? or #"),
        ("http://user:password@a", "key", "user name"),
        ("http://a", "none", "cannot read the key file"),
        ("http://a", "empty", "is empty"),
        ("http://a", "two-lines", "one line"),
    ] {
        let options = RestOptions {
            url: Some(url.to_owned()),
            key_file: Some(home.path(key_file)),
            ..RestOptions::default()
        };
        let error = find_target(&options, &home.environment()).unwrap_err();
        assert!(matches!(error, RestError::Usage(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
