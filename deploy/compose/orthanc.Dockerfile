# Debian's Orthanc, the version that the tests of this repository run. Only /var/lib/orthanc and /tmp are written to.
ARG DEBIAN_IMAGE=debian:bookworm-slim
FROM ${DEBIAN_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends orthanc orthanc-dicomweb \
    && rm -rf /var/lib/apt/lists/* /var/lib/orthanc/* \
    && chown 10002:10002 /var/lib/orthanc
USER 10002:10002
EXPOSE 4242 8042
ENTRYPOINT ["/usr/sbin/Orthanc"]
CMD ["/etc/chex-node/orthanc.json"]
