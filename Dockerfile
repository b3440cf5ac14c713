# testdg on a CPU: docker build -t testdg . && docker run --rm testdg --help; docs/adapt.md shows it with pictures.
# PyTorch's own index for CPUs, as --build-arg PIP_EXTRA_INDEX_URL=..., makes the image some gigabytes smaller.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/*.whl)[video,parquet]" && rm -r /wheels
RUN useradd --create-home testdg && mkdir /data && chown testdg /data
USER testdg
WORKDIR /data
ENV TESTDG_CACHE=/data/.testdg OMP_NUM_THREADS=4
ENTRYPOINT ["testdg", "adapt"]
CMD ["--help"]
