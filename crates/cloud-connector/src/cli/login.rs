//! `login`: saves the address and the API key of a connector as a profile.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::rest_client::{
    DEFAULT_PROFILE, GivenKey, Profile, RequestScope, RestClient, RestError, read_key_file,
    save_profile,
};
use super::{block_on, escape_for_terminal};
use crate::config::{CliEnvironment, cli_environment};
use service::settings::SecretString;

#[derive(Debug, Args)]
pub(super) struct LoginArgs {
    /// Name of the profile; commands use the profile `default` without --profile
    #[arg(long, value_name = "NAME", default_value = DEFAULT_PROFILE)]
    profile: String,
    /// URL of the REST API; without a path, /api/cloud-connector is appended [environment:
    /// CLOUD_CONNECTOR_URL]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Organization of commands that show one organization; only a key with the scope `management` can be
    /// saved without an organization [environment: CLOUD_CONNECTOR_ORG]
    #[arg(long = "org", value_name = "ORG")]
    org_id: Option<String>,
    /// Name of the API key [environment: CLOUD_CONNECTOR_KEY_NAME]
    #[arg(long, value_name = "NAME")]
    key_name: Option<String>,
    /// File that contains the API key; the profile contains a copy of the key [environment:
    /// CLOUD_CONNECTOR_KEY contains the key] [default: prompt on the terminal]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// PEM file with additional CA certificates for an https URL
    #[arg(long = "ca", value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

pub(super) fn run(args: &LoginArgs) -> Result<ExitCode> {
    let environment = cli_environment();
    let file = environment.profile_file.clone().ok_or_else(|| {
        RestError::Usage(
            "a profile needs a home folder; set HOME and repeat the command".to_owned(),
        )
    })?;
    if args.profile.is_empty() || args.profile.chars().any(char::is_control) {
        let problem =
            "the name of the profile is empty or has control characters; give another name";
        return Err(RestError::Usage(problem.to_owned()).into());
    }
    let ca_file = args.ca_file.as_deref().map(absolute_path).transpose()?;
    let url = given_or_prompted(args.url.as_ref(), environment.url.as_ref(), "URL", "--url")?;
    let key_name = given_or_prompted(
        args.key_name.as_ref(),
        environment.key_name.as_ref(),
        "Name of the API key",
        "--key-name",
    )?;
    let org_id = args.org_id.as_ref().or(environment.org_id.as_ref());
    let key = find_key(args, &environment)?;
    let client = RestClient::with_key(&url, &key_name, &key, ca_file.as_deref())?;
    block_on(async { Ok(verify(&client, org_id).await?) })?;
    let profile = Profile {
        url: client.url().to_owned(),
        key: Some(key.key),
        key_file: None,
        key_name: Some(key_name),
        org_id: org_id.cloned(),
        ca_file,
    };
    save_profile(&file, &args.profile, &profile)?;
    let usage = if args.profile == DEFAULT_PROFILE {
        "commands use it by default".to_owned()
    } else {
        format!("use it with --profile {}", args.profile)
    };
    println!(
        "{} accepted the key; saved profile {} in {}; {usage}",
        profile.url,
        args.profile,
        file.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Sends a request that needs the key. Its result does not matter.
async fn verify(client: &RestClient, org_id: Option<&String>) -> Result<(), RestError> {
    if let Some(org_id) = org_id {
        let path = ["v2", "connections"];
        let scope = RequestScope::Tenant { org_id };
        client.get_json(scope, &path, &[("limit", "0")]).await?;
        return Ok(());
    }
    let path = ["v2", "clients"];
    // An empty text finds no client, and does not use the database.
    let query = [("search", "")];
    let response = client
        .get_json(RequestScope::Management, &path, &query)
        .await;
    match response {
        Err(RestError::Rejected(problem)) => Err(RestError::Rejected(format!(
            "{problem}; a key without the scope `management` needs --org ORG"
        ))),
        response => response.map(|_| ()),
    }
}

/// Returns the value of the option or of the environment variable, or prompts for it on the terminal.
fn given_or_prompted(
    option: Option<&String>,
    variable: Option<&String>,
    label: &str,
    option_name: &str,
) -> Result<String, RestError> {
    if let Some(value) = option.or(variable) {
        return Ok(value.clone());
    }
    let missing = || RestError::Usage(format!("the {label} is missing; give {option_name}"));
    if !std::io::stdin().is_terminal() {
        return Err(missing());
    }
    let input = prompt_for(label).ok().filter(|input| !input.is_empty());
    input.ok_or_else(missing)
}

/// Prompts for a line on the terminal.
fn prompt_for(label: &str) -> std::io::Result<String> {
    let mut prompt = std::io::stderr().lock();
    write!(prompt, "{label}: ")?;
    prompt.flush()?;
    let mut input = String::new();
    std::io::stdin().read_line(&mut input)?;
    Ok(input.trim().to_owned())
}

/// Returns the API key from the file, from the environment or from a prompt without echo.
fn find_key(args: &LoginArgs, environment: &CliEnvironment) -> Result<GivenKey, RestError> {
    if let Some(file) = &args.key_file {
        let (key, origin) = read_key_file(file)?;
        return Ok(GivenKey { key, origin });
    }
    if let Some(key) = &environment.key {
        let origin = "CLOUD_CONNECTOR_KEY".to_owned();
        let key = key.clone();
        return Ok(GivenKey { key, origin });
    }
    if !std::io::stdin().is_terminal() {
        return Err(RestError::Usage(
            "there is no API key; give --key-file FILE, or set CLOUD_CONNECTOR_KEY".to_owned(),
        ));
    }
    let key = read_hidden_line("API key (not shown): ").map_err(|error| {
        RestError::Usage(format!(
            "cannot read the API key from the terminal: {error}; give --key-file FILE, or set \
             CLOUD_CONNECTOR_KEY"
        ))
    })?;
    Ok(GivenKey {
        key: SecretString::from(key.trim()),
        origin: "the prompt".to_owned(),
    })
}

/// Prompts for a line on the terminal of the process. The terminal does not show what the user types.
fn read_hidden_line(prompt: &str) -> std::io::Result<String> {
    let mut terminal = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")?;
    let visible = tcgetattr(&terminal)?;
    let mut hidden = visible.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    // Only then the prompt is shown, so nothing that is typed after the prompt is visible.
    tcsetattr(&terminal, OptionalActions::Now, &hidden)?;
    let input = terminal.write_all(prompt.as_bytes()).and_then(|()| {
        let mut input = String::new();
        BufReader::new(&terminal).read_line(&mut input)?;
        Ok(input)
    });
    tcsetattr(&terminal, OptionalActions::Now, &visible)?;
    // The line break of the user was not shown, too.
    terminal.write_all(b"\n")?;
    input
}

/// Returns the path for a profile, which must not depend on the current folder.
fn absolute_path(path: &Path) -> Result<PathBuf, RestError> {
    std::path::absolute(path).map_err(|error| {
        let path = escape_for_terminal(&path.display().to_string());
        RestError::Usage(format!(
            "invalid path {path}: {error}; give another path with --ca"
        ))
    })
}
