//! Finds the address of the connector and the API key.
//!
//! The address and the key come from the same source, so that a key is never sent to the address of
//! another source by accident. The first source that names an address is used:
//!
//! 1. `--url`, with the key from `--key-file` or `CLOUD_CONNECTOR_KEY`
//! 2. `--profile`
//! 3. `--data-dir` or `--config`: the connector that runs on this machine with this data folder
//! 4. `CLOUD_CONNECTOR_URL`, with the key from `--key-file` or `CLOUD_CONNECTOR_KEY`
//! 5. `CLOUD_CONNECTOR_PROFILE`
//! 6. the profile `default`
//! 7. the connector that runs on this machine with the data folder of the configuration

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::RestError;
use super::profiles::{self, DEFAULT_PROFILE, Profile};
use crate::config::{self, CliEnvironment, Overrides};
use crate::runtime::{LOCAL_CALLER, LocalAddress, local_key_path};
use network::http_client::parse_url;
use service::settings::{ExposeSecret as _, SecretString};

/// Path of the REST API if the given URL has no path. The default of the setting `http.base_path`.
const DEFAULT_BASE_PATH: &str = "/api/cloud-connector";

/// Options that select the connector and the API key.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connector and API key")]
pub(in crate::cli) struct RestOptions {
    /// URL of the REST API, for example `https://connector.example`; without a path,
    /// /api/cloud-connector is appended [environment: CLOUD_CONNECTOR_URL]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// File that contains the API key [environment: CLOUD_CONNECTOR_KEY contains the key]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Name of the API key [default: local] [environment: CLOUD_CONNECTOR_KEY_NAME]
    #[arg(long, value_name = "NAME")]
    pub key_name: Option<String>,
    /// PEM file with additional CA certificates for an https URL
    #[arg(long = "ca", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Profile in ~/.config/cloud-connector/config.toml that contains the URL and the key
    /// [environment: CLOUD_CONNECTOR_PROFILE]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["url", "data_dir", "config_file"])]
    pub profile: Option<String>,
    /// Data folder of a connector on this machine; it contains the URL and the key
    #[arg(long, value_name = "DIR", conflicts_with_all = ["url", "config_file"])]
    pub data_dir: Option<PathBuf>,
    /// Configuration file of a connector on this machine; it names the data folder
    #[arg(long = "config", value_name = "FILE", conflicts_with = "url")]
    pub config_file: Option<PathBuf>,
}

/// Address and API key of the connector, and the origin of both for error messages.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Target {
    /// URL of the REST API, with the base path.
    pub url: String,
    /// Where the URL comes from, for example `--url`.
    pub url_origin: String,
    pub key_name: String,
    pub key: SecretString,
    /// Where the key comes from, for example the path of a file.
    pub key_origin: String,
    /// Organization of commands that show one organization, if the source of the URL names one.
    pub org_id: Option<String>,
    pub ca_file: Option<PathBuf>,
    /// Whether the connector runs on this machine and was found in its data folder.
    pub is_local: bool,
}

/// Finds the address of the connector and the API key.
pub(super) fn find_target(
    options: &RestOptions,
    environment: &CliEnvironment,
) -> Result<Target, RestError> {
    if let Some(url) = &options.url {
        return target_of_url(url, "--url", options, environment);
    }
    if let Some(name) = &options.profile {
        let profile = profiles::require_profile(profile_file(environment)?, name)?;
        return target_of_profile(profile, name, options, environment);
    }
    if options.data_dir.is_some() || options.config_file.is_some() {
        return local_target(options, environment);
    }
    if let Some(url) = &environment.url {
        return target_of_url(url, "CLOUD_CONNECTOR_URL", options, environment);
    }
    if let Some(name) = &environment.profile {
        let profile = profiles::require_profile(profile_file(environment)?, name)?;
        return target_of_profile(profile, name, options, environment);
    }
    if let Some(file) = &environment.profile_file
        && let Some(profile) = profiles::find_profile(file, DEFAULT_PROFILE)?
    {
        return target_of_profile(profile, DEFAULT_PROFILE, options, environment);
    }
    local_target(options, environment)
}

fn profile_file(environment: &CliEnvironment) -> Result<&Path, RestError> {
    environment.profile_file.as_deref().ok_or_else(|| {
        RestError::Usage(
            "a profile needs a home folder; set HOME, or give --url and --key-file".to_owned(),
        )
    })
}

fn target_of_url(
    url: &str,
    url_origin: &str,
    options: &RestOptions,
    environment: &CliEnvironment,
) -> Result<Target, RestError> {
    let url = complete_url(url, url_origin)?;
    let (key, key_origin) = match (&options.key_file, &environment.key) {
        (Some(file), _) => read_key_file(file)?,
        (None, Some(key)) => (key.clone(), "CLOUD_CONNECTOR_KEY".to_owned()),
        (None, None) => {
            return Err(RestError::Usage(format!(
                "there is no API key for {url} (from {url_origin}); give --key-file FILE, or set \
                 CLOUD_CONNECTOR_KEY"
            )));
        }
    };
    check_key(&key, &key_origin)?;
    Ok(Target {
        url,
        url_origin: url_origin.to_owned(),
        key_name: key_name(options, environment),
        key,
        key_origin,
        org_id: None,
        ca_file: options.ca_file.clone(),
        is_local: false,
    })
}

fn target_of_profile(
    profile: Profile,
    name: &str,
    options: &RestOptions,
    environment: &CliEnvironment,
) -> Result<Target, RestError> {
    let url_origin = format!("profile {name}");
    let url = complete_url(&profile.url, &url_origin)?;
    let key_file = options.key_file.as_ref().or(profile.key_file.as_ref());
    let (key, key_origin) = match (&options.key_file, profile.key, key_file) {
        (None, Some(key), _) => (key, url_origin.clone()),
        (_, _, Some(file)) => read_key_file(file)?,
        (_, _, None) => {
            return Err(RestError::Usage(format!(
                "profile {name} has no API key; add key or key_file to [profiles.{name}], or give \
                 --key-file FILE"
            )));
        }
    };
    check_key(&key, &key_origin)?;
    let key_name_of_profile = options.key_name.clone().or(profile.key_name);
    Ok(Target {
        url,
        url_origin,
        key_name: key_name_of_profile.unwrap_or_else(|| key_name(options, environment)),
        key,
        key_origin,
        org_id: profile.org_id,
        ca_file: options.ca_file.clone().or(profile.ca_file),
        is_local: false,
    })
}

/// An API key that was given to `login`, and its origin for error messages.
#[derive(Debug)]
pub(in crate::cli) struct GivenKey {
    pub key: SecretString,
    pub origin: String,
}

/// Returns the target with this address and this key.
pub(super) fn given_target(
    url: &str,
    key_name: &str,
    key: &GivenKey,
    ca_file: Option<&Path>,
) -> Result<Target, RestError> {
    check_key(&key.key, &key.origin)?;
    Ok(Target {
        url: complete_url(url, "the given address")?,
        url_origin: "the given address".to_owned(),
        key_name: key_name.to_owned(),
        key: key.key.clone(),
        key_origin: key.origin.clone(),
        org_id: None,
        ca_file: ca_file.map(Path::to_path_buf),
        is_local: false,
    })
}

/// Finds the connector that runs on this machine.
fn local_target(options: &RestOptions, environment: &CliEnvironment) -> Result<Target, RestError> {
    let dir = local_data_dir(options)?;
    let folder = dir.display();
    let address = LocalAddress::read(&dir).map_err(|error| {
        RestError::Failed(format!(
            "cannot read the data folder {folder}: {error}; run the command as the user that runs \
             the connector, or give --url and --key-file"
        ))
    })?;
    let Some(address) = address else {
        return Err(RestError::Unreachable(format!(
            "no connector runs with the data folder {folder}; start it with `cloud-connector run`, \
             name its data folder with --data-dir, or give --url and --key-file"
        )));
    };
    let (key_file, name) = match &options.key_file {
        Some(file) => (file.clone(), key_name(options, environment)),
        None => (local_key_path(&dir), LOCAL_CALLER.to_owned()),
    };
    if options.key_file.is_none() && !key_file.exists() {
        return Err(RestError::Usage(format!(
            "there is no API key in the data folder {folder}; set api.local_key = true and restart \
             the connector, or give --key-file FILE and --key-name NAME"
        )));
    }
    let (key, key_origin) = read_key_file(&key_file)?;
    check_key(&key, &key_origin)?;
    Ok(Target {
        url: address.url,
        url_origin: format!("data folder {folder}"),
        key_name: name,
        key,
        key_origin,
        org_id: address.org_id,
        ca_file: options.ca_file.clone(),
        is_local: true,
    })
}

fn local_data_dir(options: &RestOptions) -> Result<PathBuf, RestError> {
    if let Some(dir) = &options.data_dir {
        return Ok(dir.clone());
    }
    let overrides = Overrides {
        config_file: options.config_file.clone(),
        flags: Vec::new(),
    };
    let loaded = config::load(&overrides).map_err(|error| RestError::Usage(error.to_string()))?;
    if !loaded.config.postgres.host.is_empty() {
        return Err(RestError::Usage(
            "the address of the connector is not known: with postgres.host, there is no data \
             folder; give --url and --key-file"
                .to_owned(),
        ));
    }
    Ok(loaded.config.data.dir)
}

fn key_name(options: &RestOptions, environment: &CliEnvironment) -> String {
    let name = options.key_name.as_ref().or(environment.key_name.as_ref());
    name.map_or(LOCAL_CALLER, String::as_str).to_owned()
}

/// Checks a URL. Appends the default base path if the URL has no path.
fn complete_url(url: &str, origin: &str) -> Result<String, RestError> {
    let invalid = |problem: &str| {
        RestError::Usage(format!(
            "the URL {url:?} (from {origin}) is invalid: {problem}; an example is \
             https://connector.example{DEFAULT_BASE_PATH}"
        ))
    };
    let mut parsed = parse_url(url).map_err(|problem| invalid(&problem))?;
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(invalid("the URL must not contain ? or #"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid("the URL must not contain a user name or password"));
    }
    if parsed.path() == "/" {
        parsed.set_path(DEFAULT_BASE_PATH);
    }
    Ok(parsed.as_str().trim_end_matches('/').to_owned())
}

/// Reads a key. Also returns the origin of the key for error messages.
pub(in crate::cli) fn read_key_file(file: &Path) -> Result<(SecretString, String), RestError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        RestError::Usage(format!(
            "cannot read the key file {}: {error}; check the path and its permissions",
            file.display()
        ))
    })?;
    Ok((SecretString::from(text.trim()), file.display().to_string()))
}

/// Checks that a key can be sent in an HTTP header.
fn check_key(key: &SecretString, origin: &str) -> Result<(), RestError> {
    let key = key.expose_secret();
    if !key.is_empty() && key.chars().all(|c| matches!(c, ' '..='~')) {
        return Ok(());
    }
    Err(RestError::Usage(format!(
        "the API key from {origin} is empty or contains characters that are not printable ASCII; \
         store the key alone, in one line"
    )))
}

#[cfg(test)]
mod tests;
