"""Where the API server is, and who we are there: a kubeconfig file as kubectl reads it, or a pod's service account.

All of it is the work of the `kubernetes` package: several files in KUBECONFIG, plug-ins that log in, OpenID Connect,
tokens that are renewed while a forward lasts, and the requests themselves. It takes half a second to load, so it is
imported here, inside functions, and nowhere else.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from epochal.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

REFRESH = 60.0
"""Seconds between looks at whether a token must be renewed."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which cluster: a context of kubeconfig files; and in which namespace its catalog is, if that is known."""

    context: str | None = None
    kubeconfig: str | None = None
    catalog_namespace: str | None = None

    @property
    def files(self) -> str:
        """The kubeconfig files, as KUBECONFIG lists them."""
        return self.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"

    @property
    def is_inside(self) -> bool:
        """Whether there is no kubeconfig, but a pod's own service account."""
        return not self._exists() and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    def _exists(self) -> bool:
        return any(Path(name).expanduser().exists() for name in self.files.split(os.pathsep) if name)

    def check(self) -> None:
        """Raises `ConfigError` when there is nothing to choose from."""
        if not self._exists() and not self.is_inside:
            raise ConfigError(
                f"no kubeconfig: there is no {self.files}; name one with KUBECONFIG, as for kubectl "
                "(or --kubeconfig of the command epochal)"
            )


@dataclass(slots=True)
class Access:
    """An API server and how to speak to it. Call `headers` before every request: tokens are renewed."""

    server: str
    name: str
    """The context's, for people."""
    namespace: str | None
    """The context's own, if it names one."""
    tls: ssl.SSLContext
    server_name: str | None
    proxy: str | None
    inside: bool
    _configuration: "Configuration"
    _rest: "RESTClientObject"
    _renewing: "asyncio.Task[None] | None" = None

    async def headers(self) -> dict[str, str]:
        """The headers that authenticate a request."""
        settings: Mapping[str, Any] = await self._configuration.auth_settings()
        token = settings.get("BearerToken", {}).get("value")  # the package's name for it, also for a password
        return {"Authorization": str(token)} if token else {}

    def session(self, connections: int = 0, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Connections to the API server; `connections` at once at most, 0: any number."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.tls, limit=connections),
            proxy=self.proxy,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(*middlewares, _refuse_redirects),
        )

    def rest(self, session: aiohttp.ClientSession) -> "RESTClientObject":
        """The package's way to send requests, over `session`."""
        self._rest.pool_manager = session
        return self._rest

    async def close(self) -> None:
        """Renew no longer."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])


async def _refuse_redirects(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Credentials are for the API server alone, and it never redirects."""
    response = await send(request)
    if response.status in (301, 302, 303, 307, 308):
        response.close()
        raise aiohttp.ClientConnectionError(f"it redirects elsewhere ({response.status})")
    return response


def context_namespace(choice: Choice) -> str | None:
    """The namespace that the chosen context names; None without one, or without such a context."""
    if choice.is_inside:
        return own_namespace()
    with suppress(ConfigError):
        return _context(choice)[1]
    return None


async def open_access(choice: Choice) -> Access:
    """Read the kubeconfig and log in; raises `ConfigError`, or `ClusterError` when a plug-in does not log in."""
    choice.check()
    config, client = _library()
    configuration = client.Configuration()
    if choice.is_inside:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise ConfigError(f"this pod has no service account to speak to Kubernetes with: {error}") from None
        return _access(configuration, "the pod's service account", own_namespace(), inside=True)
    name, namespace = _context(choice)
    with _unusable(choice), _complaints() as complaints:
        loader = await config.load_kube_config(
            config_file=choice.files, context=name, client_configuration=configuration, persist_config=False
        )
    if complaints:
        raise ClusterError(f"context {name} of {choice.files}: cannot log in: {'; '.join(complaints)}")
    access = _access(configuration, name, namespace, inside=False)
    access._renewing = asyncio.create_task(_renew(loader, configuration), name="renew the cluster's token")
    return access


def _access(configuration: "Configuration", name: str, namespace: str | None, *, inside: bool) -> Access:
    from kubernetes.aio.client.rest import RESTClientObject

    try:
        rest = RESTClientObject(configuration)  # with the package's reading of every setting
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificates of context {name} cannot be used: {error}") from None
    return Access(
        server=str(configuration.host).rstrip("/"),
        name=name,
        namespace=namespace,
        tls=rest.ssl_context,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy or _environment_proxy(str(configuration.host)),
        inside=inside,
        _configuration=configuration,
        _rest=rest,
    )


def _environment_proxy(server: str) -> str | None:
    """What HTTPS_PROXY and NO_PROXY say, read once: aiohttp would read it for each call, in a thread."""
    parts = urlsplit(server)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


async def _renew(loader: Any, configuration: "Configuration") -> None:
    config, _ = _library()
    with suppress(AttributeError, TypeError):  # which it raises for a user whose credentials do not end
        await config.refresh_token(loader, configuration, REFRESH)


def _context(choice: Choice) -> tuple[str, str | None]:
    """Name and namespace of the chosen context; raises `ConfigError`."""
    choice.check()
    config, _ = _library()
    with _unusable(choice):
        contexts, current = config.list_kube_config_contexts(choice.files)
    if choice.context is not None:
        found = next((context for context in contexts if context["name"] == choice.context), None)
        if found is None:
            names = ", ".join(sorted(context["name"] for context in contexts)) or "none"
            raise ConfigError(f"no context '{choice.context}' in {choice.files} (there are: {names})")
        current = found
    return str(current["name"]), current["context"].get("namespace") or None


@contextmanager
def _unusable(choice: Choice) -> Iterator[None]:
    import yaml

    config, _ = _library()
    try:
        yield
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the kubeconfig {choice.files} cannot be used: {reason}") from None


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the package only logs: why a plug-in did not log in."""
    logged: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]  # this one's alone
    logger = logging.getLogger("kubernetes.aio.config.kube_config")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield logged
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def own_namespace() -> str | None:
    """The namespace of the pod that this runs in; None outside of one."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _library() -> tuple[Any, Any]:
    try:
        from kubernetes.aio import client, config
    except ImportError:
        raise ConfigError("a cluster is reached with the extra `kube`: pip install 'epochal[kube]'") from None
    return config, client
